"""ZeroMQ request/reply with many questions in flight: DEALER (Ask, AskBlocking) to ROUTER (Answer).

Frames: `[id: 8 bytes][msgpack]`. The id pairs a reply with its question; a question that got no reply within `retry_s`
is sent again with the same id (the peer may have been restarted), so the peer's operations must be idempotent.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from rlctl.errors import PeerRefused, WireError
from rlctl.wire.messages import Refused, Reply, Request

log = logging.getLogger(__name__)
encode = msgspec.msgpack.Encoder().encode
decode_request: Callable[[bytes], Request] = msgspec.msgpack.Decoder(Request).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder(Reply).decode
RETRY_S = 5.0


def _dealer(context: zmq.Context, url: str) -> Any:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.connect(url)
    return socket


def _opened(reply: Reply) -> Reply:
    if isinstance(reply, Refused):
        raise PeerRefused(reply.reason)
    return reply


class Ask:
    """Asynchronous client; one per peer, shared by all tasks of one event loop."""

    def __init__(self, url: str, retry_s: float = RETRY_S) -> None:
        self.url = url
        self.retry_s = retry_s
        self._socket: Any = _dealer(zmq.asyncio.Context.instance(), url)
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._ids = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, request: Request, timeout_s: float = 60.0) -> Any:
        """Send `request` (again every `retry_s`) until a reply comes; WireError after `timeout_s` or on Refused."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        key = next(self._ids).to_bytes(8, "little")
        payload = encode(request)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                await self._socket.send_multipart([key, payload])
                left = deadline - time.monotonic()
                done, _ = await asyncio.wait([future], timeout=max(0.0, min(self.retry_s, left)))
                if done:
                    return _opened(future.result())
                if time.monotonic() >= deadline:
                    raise WireError(f"no answer from {self.url} to {type(request).__name__} within {timeout_s:g} s")
        finally:
            del self._waiting[key]

    async def _read(self) -> None:
        while True:
            key, payload = await self._socket.recv_multipart()
            future = self._waiting.get(key)
            if future is None or future.done():
                continue
            try:
                future.set_result(decode_reply(payload))
            except msgspec.DecodeError as error:
                future.set_exception(WireError(f"{self.url} sent a reply that does not decode: {error}"))

    def close(self) -> None:
        if self._reader:
            self._reader.cancel()
        self._socket.close(linger=0)


class AskBlocking:
    """Blocking client for code without an event loop (the trainer); not thread-safe."""

    def __init__(self, url: str, retry_s: float = RETRY_S) -> None:
        self.url = url
        self.retry_s = retry_s
        self._socket = _dealer(zmq.Context.instance(), url)
        self._ids = itertools.count(1)

    def ask(self, request: Request, timeout_s: float = 60.0) -> Any:
        """As Ask.ask, blocking."""
        key = next(self._ids).to_bytes(8, "little")
        payload = encode(request)
        deadline = time.monotonic() + timeout_s
        while True:
            self._socket.send_multipart([key, payload])
            resend = min(time.monotonic() + self.retry_s, deadline)
            while (left := resend - time.monotonic()) > 0:
                if not self._socket.poll(max(1, int(left * 1000))):
                    continue
                answered, reply = self._socket.recv_multipart()
                if answered == key:
                    return _opened(decode_reply(reply))
            if time.monotonic() >= deadline:
                raise WireError(f"no answer from {self.url} to {type(request).__name__} within {timeout_s:g} s")

    def close(self) -> None:
        self._socket.close(linger=0)


class Answer:
    """Server side: `handler(request) -> reply` runs as a task per question, so a waiting one blocks nobody."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket: Any = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        try:
            if port:
                self._socket.bind(f"tcp://{host}:{port}")
                self.port = port
            else:
                self.port = self._socket.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            raise WireError(f"cannot listen on tcp://{host}:{port}: {error}") from error
        self.url = f"tcp://{host}:{self.port}"

    async def serve(self, handler: Callable[[Request], Awaitable[Reply]]) -> None:
        """Answer until cancelled. RlctlError and bad messages become Refused; anything else propagates and ends it."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                peer, key, payload = await self._socket.recv_multipart()
                tasks.create_task(self._answer(handler, peer, key, payload))

    async def _answer(
        self, handler: Callable[[Request], Awaitable[Reply]], peer: bytes, key: bytes, payload: bytes
    ) -> None:
        try:
            reply = await handler(decode_request(payload))
        except msgspec.DecodeError as error:
            reply = Refused(f"message does not decode: {error}")
        except WireError as error:
            reply = Refused(str(error))
        await self._socket.send_multipart([peer, key, encode(reply)])

    def close(self) -> None:
        self._socket.close(linger=0)
