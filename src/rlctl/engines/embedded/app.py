"""The HTTP face as a plain ASGI application (a framework would cost as much as the model does)."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from rlctl.engines.embedded import completions
from rlctl.engines.embedded.completions import Refusal, Texts, encode
from rlctl.engines.embedded.measure import Measure
from rlctl.engines.embedded.serving import Serving
from rlctl.engines.embedded.streaming import stream
from rlctl.engines.embedded.weights import BadWeights, Reader

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON = (b"content-type", b"application/json")


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True):
    """`PUT /policy`."""

    version: int
    path: str


class App:
    """ASGI application of one embedded engine."""

    def __init__(self, serving: Serving, texts: Texts, measure: Measure, model: str) -> None:
        self.serving = serving
        self.texts = texts
        self.measure = measure
        self.model = model
        self.policy: dict[str, Any] = {"version": 0, "checksum": "", "path": model}
        self._ids = itertools.count()
        self._swapping = asyncio.Lock()
        self._reader = Reader()
        self._routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions,
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/policy"): self._policy,
            ("PUT", "/policy"): self._new_policy,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        route = self._routes.get((scope["method"], scope["path"]))
        try:
            if route is None:
                known = any(path == scope["path"] for _, path in self._routes)
                raise Refusal(
                    f"{scope['method']} {scope['path']} is not served here", "not_found", 405 if known else 404
                )
            await route(scope, receive, send)
        except Refusal as refusal:
            kind = "invalid_request_error" if refusal.status < 500 else "server_error"
            error = {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
            await reply(send, encode({"error": error}), refusal.status)

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = dict(scope["headers"])
        session = header.get(b"x-session-id", b"").decode("latin-1")
        body, sequences = completions.parse(await read(receive), session, self.texts)
        number = header.get(b"x-request-id", b"").decode("latin-1") or f"{next(self._ids):x}"
        base = {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or self.model,
        }
        self.measure.requests += 1
        if body.stream:
            await until_gone(receive, stream(self.serving, sequences, self.texts, base, send))
            return
        if not await until_gone(receive, self.serving.generate(sequences)):
            self.measure.disconnects += 1
            return
        base["choices"] = [completions.choice(s, i, self.texts) for i, s in enumerate(sequences)]
        base["usage"] = completions.usage(sequences)
        await reply(send, encode(base), 200, (b"x-policy-versions", completions.versions_header(sequences).encode()))

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b'{"status":"ok"}')

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        card = {"id": self.model, "object": "model", "owned_by": "rlctl", "max_model_len": self.texts.max_context}
        await reply(send, encode({"object": "list", "data": [card]}))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, self.measure.prometheus().encode(), 200, (b"content-type", b"text/plain; version=0.0.4"))

    async def _policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, encode(self.policy))

    async def _new_policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = msgspec.json.decode(await read(receive), type=PolicyBody)
        except msgspec.DecodeError as error:
            raise Refusal(str(error)) from None
        start = time.perf_counter()
        async with self._swapping:
            if asked.version < self.policy["version"]:
                raise Refusal(
                    f"version {self.policy['version']} is served; {asked.version} is older", "old_version", 409
                )
            try:
                weights, checksum = await asyncio.to_thread(self._reader.read, Path(asked.path), asked.version)
                await self.serving.swap(weights, asked.version)
            except BadWeights as error:
                raise Refusal(f"{asked.path}: {error}", "bad_weights", 422) from None
            self.policy = {"version": asked.version, "checksum": checksum, "path": asked.path}
            self.measure.updates += 1
        seconds = time.perf_counter() - start
        await reply(send, encode({"version": asked.version, "checksum": checksum, "seconds": seconds}))


async def read(receive: Receive) -> bytes:
    """The whole request body."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        data += message.get("body", b"")
    return data


async def until_gone(receive: Receive, work: Awaitable[None]) -> bool:
    """Do `work`; when the client goes away first, cancel it and return False."""
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: None if gone.cancelled() else task.cancel())
    try:
        await work
    except asyncio.CancelledError:
        if not gone.done():
            raise
        task.uncancel()
        return False
    finally:
        gone.cancel()
    return True


async def reply(send: Send, body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    """One whole response; JSON unless `headers` say otherwise."""
    named = [*headers, (b"content-length", b"%d" % len(body))]
    if not any(name == JSON[0] for name, _ in headers):
        named.append(JSON)
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})
