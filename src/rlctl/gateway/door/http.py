"""Raw ASGI in, small objects out: what the routes need of HTTP, and nothing else on the hot path."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlctl.gateway.faults import Fault

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_encode = msgspec.msgpack.Encoder().encode
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


@dataclass(slots=True)
class Request:
    """One HTTP request with its whole body."""

    scope: dict[str, Any]
    body: bytes
    receive: Receive
    uid: str = ""
    """Trajectory of the path, if any."""
    prompt_uid: str = ""

    def header(self, name: bytes) -> str:
        """Value of a header (lower-case name), or ''."""
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name), "")

    def json(self, kind: Any) -> Any:
        """The body as `kind`; an empty body counts as {}. Fault 400 when it is something else.

        JSON's integers have no end, those of the messages to the pool have 64 bits.
        """
        try:
            value = msgspec.json.decode(self.body or b"{}", type=kind)
            _encode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Fault(400, f"bad body: {error}", "invalid_body") from None
        except OverflowError:
            raise Fault(400, "bad body: an integer in it does not fit in 64 bits", "invalid_body") from None
        return value

    def client_gone(self) -> bool:
        """Whether the client has closed its connection; a single poll of `receive`, which else would wait."""
        poll = self.receive().__await__()
        try:
            next(poll)
        except StopIteration as answer:
            return bool(answer.value["type"] == "http.disconnect")
        poll.close()
        return False


@dataclass(slots=True)
class Response:
    """What goes back; `events` makes it a stream."""

    body: bytes = b""
    status: int = 200
    kind: tuple[bytes, bytes] = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    events: AsyncIterator[bytes] | None = None


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(value), status)


def failed(fault: Fault, anthropic: bool = False) -> Response:
    """The error's response, in the shape of the dialect that was spoken."""
    headers = [(b"retry-after", str(fault.retry_after_s).encode())] if fault.retry_after_s else []
    if fault.allow:
        headers.append((b"allow", fault.allow.encode()))
    return Response(fault.anthropic_body() if anthropic else fault.body(), fault.status, headers=headers)


async def read_body(scope: dict[str, Any], receive: Receive, limit: int, within_s: float) -> bytes:
    """The whole body; Fault 413 beyond `limit` bytes, 408 after `within_s`, 400 when the client left in the middle."""
    for key, value in scope["headers"]:
        if key == b"content-length" and int(value) > limit:
            raise _too_big(limit)
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        body: bytes = message["body"]
        if len(body) > limit:
            raise _too_big(limit)
        return body
    try:
        async with asyncio.timeout(within_s):
            return await _rest_of_body(message, receive, limit)
    except TimeoutError:
        text = f"the body did not come within gateway.body_timeout_s = {within_s:g}"
        raise Fault(408, text, "body_timeout") from None


async def _rest_of_body(message: dict[str, Any], receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise Fault(400, "the client went away before the body was complete", "incomplete_body")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_big(limit)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _too_big(limit: int) -> Fault:
    return Fault(413, f"the body is longer than gateway.max_body_bytes = {limit}", "body_too_long")


async def write(send: Send, response: Response) -> None:
    """Send it."""
    headers = [response.kind, *response.headers]
    if response.events is None:
        headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        return
    headers.append((b"cache-control", b"no-cache"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for event in response.events:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
