"""rlctl's face on vLLM's API server: an ASGI middleware (`vllm serve --middleware rlctl.engines.vllm.face.Face`).

    lifespan          startup complete -> label version 0; then warm up, announce, write metrics
    GET/PUT /policy   answered here (policy)
    POST /v1/*        passed on to vLLM; the response gets X-Policy-Versions (versions)
    ... with images   their own way into the prompt (images)
    everything else   passed on untouched: /health /metrics /v1/models

A streamed response has sent its headers before its tokens are known; there the same text comes in a last chunk without
choices, `"policy_versions": "3:17,4:47"`, just before `data: [DONE]`.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from rlctl.engines.vllm import images
from rlctl.engines.vllm.policy import Broken, Policy
from rlctl.engines.vllm.presence import Presence, Tally
from rlctl.engines.vllm.settings import FaceSettings
from rlctl.engines.vllm.versions import TOLD, Told, header, tokens, track
from rlctl.engines.vllm.weights import Refused
from rlctl.telemetry import logs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)
CHUNK, DONE = b"data: {", b"data: [DONE]"


class Face:
    """Wraps vLLM's application; `scope["app"].state.engine_client` is vLLM's engine client."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings = FaceSettings.from_environment()
        self.policy: Policy | None = None
        self.tally = Tally()
        self._presence: asyncio.Task[None] | None = None
        self._sees_images = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/policy":
            await self._policy(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith("/v1/"):
            if images.announced(scope):
                await self._with_images(scope, receive, send)
            else:
                await self._versioned(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # ------------------------------------------------------------ life

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._start(scope["app"].state.engine_client)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            if self._presence:
                self._presence.cancel()

    async def _start(self, client: Any) -> None:
        logs.setup(self.settings.name)
        self.policy = Policy(client, self.settings.model)
        await self.policy.start()
        client.generate = track(client.generate)
        self._sees_images = images.attach(client)
        presence = Presence(self.settings, self.policy, self.tally)
        self._presence = asyncio.create_task(presence.run())
        self._presence.add_done_callback(_end_process_on_failure)

    # ------------------------------------------------------------ /policy

    async def _policy(self, scope: Message, receive: Receive, send: Send) -> None:
        if self.policy is None:
            await _reply(send, 503, _error("the engine is still starting"))
        elif scope["method"] == "GET":
            await _reply(send, 200, self.policy.state())
        elif scope["method"] == "PUT":
            await _reply(send, *await self._put(self.policy, await _body(receive)))
        else:
            await _reply(send, 405, _error("GET or PUT"))

    async def _put(self, policy: Policy, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            order = json.loads(body)
            version, path = order["version"], order["path"]
        except (ValueError, TypeError, LookupError):
            return 400, _error('the body must be {"version": N, "path": DIR}')
        if type(version) is not int or version < 0 or not isinstance(path, str) or not Path(path).is_absolute():
            return 400, _error(f"version must be 0 or more and path absolute, not {version!r} and {path!r}")
        # Shielded: an update that has begun is finished even if whoever asked for it hangs up.
        try:
            return 200, await asyncio.shield(asyncio.ensure_future(policy.put(version, path)))
        except Refused as error:
            return error.status, _error(str(error))
        except Broken as error:
            log.critical("%s; this engine ends, it must not generate from such weights", error)
            asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
            return 500, _error(str(error))

    # ------------------------------------------------------------ images

    async def _with_images(self, scope: Message, receive: Receive, send: Send) -> None:
        if not self._sees_images:
            await _reply(send, 501, _error("this vLLM has no renderer that takes images beside token ids"))
            return
        try:
            body, taken = await asyncio.to_thread(images.unpacked, await _body(receive), images.decoded)
        except images.BadImages as error:
            await _reply(send, 400, _error(str(error)))
            return

        async def confirmed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (images.HEADER, str(len(taken)).encode())]
            await send(message)

        token = images.IMAGES.set(taken)
        try:
            await self._versioned(scope, images.replayed(body, receive), confirmed)
        finally:
            images.IMAGES.reset(token)

    # ------------------------------------------------------------ versions

    async def _versioned(self, scope: Message, receive: Receive, send: Send) -> None:
        told: Told = []
        start: Message | None = None
        streamed = False
        last = b""

        async def labelled(message: Message) -> None:
            nonlocal start, streamed, last
            if message["type"] == "http.response.start":
                start = message
                headers = dict(message.get("headers", ()))
                streamed = headers.get(b"content-type", b"").startswith(b"text/event-stream")
                if told and not streamed:
                    message["headers"] = [*message["headers"], (b"x-policy-versions", header(told).encode())]
            elif streamed and (body := message.get("body", b"")):
                head, done, rest = body.partition(DONE)
                last = head if head.startswith(CHUNK) else last
                if done and told and last:
                    message["body"] = head + _tail(last, header(told)) + done + rest
            await send(message)

        token = TOLD.set(told)
        self.tally.running += 1
        try:
            await self.app(scope, receive, labelled)
        finally:
            TOLD.reset(token)
            self.tally.running -= 1
            self.tally.requests += 1
            self.tally.tokens += tokens(told)
            self.tally.failed += start is None or start["status"] >= 400


def _tail(chunk: bytes, versions: str) -> bytes:
    """A chunk like `chunk` (an SSE event), but with no choices and the versions of all of them."""
    like = json.loads(chunk.splitlines()[0].removeprefix(b"data: "))
    content = {key: like[key] for key in ("id", "object", "created", "model") if key in like}
    return b"data: " + json.dumps(content | {"choices": [], "policy_versions": versions}).encode() + b"\n\n"


def _end_process_on_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()):
        log.critical("this engine ends: %s", error)
        os.kill(os.getpid(), signal.SIGTERM)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "policy_error"}}


async def _reply(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
