"""ZeroMQ request/reply with many questions in flight: DEALER (Ask, AskBlocking) to ROUTER (Answer).

Frames: `[id: 8 bytes][msgpack]`. The id pairs a reply with its question; a question that got no reply within `retry_s`
is sent again with the same id (the peer may have been restarted), so the peer's operations must be idempotent. A client
keeps its identity over reconnections, so a question that is still being answered is not taken up a second time.

An address may name several places, `tcp://A:1,tcp://B:1`, of which one serves at a time (a pool that moves between
hosts): questions go to whoever has taken the connection.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import zmq

from rlctl.errors import PeerRefused, WireError
from rlctl.wire.frames import Buffer
from rlctl.wire.messages import Refused, Reply, Request

encode = msgspec.msgpack.Encoder().encode
decode_request: Callable[[Buffer], Request] = msgspec.msgpack.Decoder(Request).decode
decode_reply: Callable[[Buffer], Reply] = msgspec.msgpack.Decoder(Reply).decode
RETRY_S = 5.0
UNCONNECTED_S = 0.05
"""Until the next attempt to send, while none of several places has taken the connection."""
HEARTBEAT_S = 2.0
"""To several places: one that is silent for three of these is no longer connected."""
COPIED_OUT, COPIED_IN = 256 << 10, 16 << 10
"""Bytes of a frame up to which a copy is cheaper than none; sending without a copy wakes a thread more."""
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""As numbers: to combine the enumeration's members costs as much as to send."""
BURST = 256
"""Messages taken from a socket before other work of the event loop gets its turn."""


def _dealer(url: str) -> Any:
    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"c" + uuid.uuid4().bytes)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    places = url.split(",")
    if len(places) > 1:
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(3 * HEARTBEAT_S * 1000))
    for place in places:
        socket.connect(place)
    return socket


def _send(socket: Any, frames: list[bytes]) -> bool:
    """Without waiting; False while nobody is connected (a single place always counts as connected)."""
    *heads, body = frames
    try:
        for head in heads:
            socket.send(head, MORE)
        socket.send(body, NOBLOCK, copy=len(body) <= COPIED_OUT)
    except zmq.Again:
        return False
    return True


def _receive(socket: Any) -> list[Buffer]:
    """The frames of the next message, large ones without a copy; zmq.Again if there is none."""
    frames: list[Buffer] = [socket.recv(zmq.NOBLOCK)]
    while socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv(copy=False)
        frames.append(frame.buffer if len(frame) > COPIED_IN else frame.bytes)
    return frames


def _opened(reply: Reply) -> Reply:
    if isinstance(reply, Refused):
        raise PeerRefused(reply.reason)
    return reply


class _OnLoop:
    """A ZeroMQ socket on the running event loop: drained many messages per wake-up, sent without waiting.

    The socket's file descriptor signals edges only, and a send can swallow one: so every wake-up drains until the
    socket is empty, and every send is followed by another look.
    """

    def __init__(self, socket: Any, on_message: Callable[[Sequence[Buffer]], None]) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.getsockopt(zmq.FD)
        self._looking = False
        self._loop.add_reader(self._descriptor, self._drain)
        self._look_again()

    def send(self, frames: list[bytes]) -> bool:
        sent = _send(self._socket, frames)
        self._look_again()
        return sent

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._looking = True

    def _look_again(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        if not self._socket.closed:
            self._looking = False
            self._drain()

    def _drain(self) -> None:
        try:
            for _ in range(BURST):
                self._on_message(_receive(self._socket))
        except zmq.Again:
            return
        self._look_again()


class Ask:
    """Asynchronous client; one per peer, shared by all tasks of one event loop."""

    def __init__(self, url: str, retry_s: float = RETRY_S) -> None:
        self.url = url
        self.retry_s = retry_s
        self._socket = _dealer(url)
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._ids = itertools.count(1)
        self._on_loop: _OnLoop | None = None

    async def ask(self, request: Request, timeout_s: float = 60.0) -> Any:
        """Send `request` (again every `retry_s`) until a reply comes; WireError after `timeout_s` or on Refused."""
        loop = asyncio.get_running_loop()
        on_loop = self._on_loop = self._on_loop or _OnLoop(self._socket, self._received)
        frames = [next(self._ids).to_bytes(8, "little"), encode(request)]
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting[frames[0]] = future
        deadline = loop.time() + timeout_s

        def again() -> None:
            if future.done():
                return
            if loop.time() >= deadline:
                name = type(request).__name__
                future.set_exception(WireError(f"no answer from {self.url} to {name} within {timeout_s:g} s"))
                return
            send()

        def send() -> None:
            pause = self.retry_s if on_loop.send(frames) else UNCONNECTED_S
            timers[:] = [loop.call_at(min(loop.time() + pause, deadline), again)]

        timers: list[asyncio.TimerHandle] = []
        send()
        try:
            return _opened(await future)
        finally:
            timers[-1].cancel()
            del self._waiting[frames[0]]

    def _received(self, frames: Sequence[Buffer]) -> None:
        key, payload = frames
        future = self._waiting.get(bytes(key))
        if future is None or future.done():
            return
        try:
            future.set_result(decode_reply(payload))
        except msgspec.DecodeError as error:
            future.set_exception(WireError(f"{self.url} sent a reply that does not decode: {error}"))

    def close(self) -> None:
        if self._on_loop:
            self._on_loop.close()
        self._socket.close(linger=0)


class AskBlocking:
    """Blocking client for code without an event loop (the trainer); not thread-safe."""

    def __init__(self, url: str, retry_s: float = RETRY_S) -> None:
        self.url = url
        self.retry_s = retry_s
        self._socket = _dealer(url)
        self._ids = itertools.count(1)

    def ask(self, request: Request, timeout_s: float = 60.0) -> Any:
        """As Ask.ask, blocking."""
        key = next(self._ids).to_bytes(8, "little")
        payload = encode(request)
        deadline = time.monotonic() + timeout_s
        while True:
            pause = self.retry_s if _send(self._socket, [key, payload]) else UNCONNECTED_S
            resend = min(time.monotonic() + pause, deadline)
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


Question = tuple[bytes, bytes]
"""Identity of a client and id of its question."""


def _begun(
    handler: Callable[[Any], Awaitable[Reply]], decode: Callable[[Buffer], Any], message: Buffer
) -> asyncio.Future[Reply]:
    try:
        return asyncio.ensure_future(handler(decode(message)))
    except msgspec.DecodeError as error:
        failure: Exception = WireError(f"message does not decode: {error}")
    except Exception as error:
        failure = error
    failed: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    failed.set_exception(failure)
    return failed


class Answer:
    """Server side: `handler(request) -> reply` runs as a task per question, so a waiting one blocks nobody."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            if port:
                self._socket.bind(f"tcp://{host}:{port}")
                self.port = port
            else:
                self.port = self._socket.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            raise WireError(f"cannot listen on tcp://{host}:{port}: {error}") from error
        self.url = f"tcp://{host}:{self.port}"

    async def serve(
        self, handler: Callable[[Any], Awaitable[Reply]], decode: Callable[[Buffer], Any] = decode_request
    ) -> None:
        """Answer until cancelled. WireError and bad messages become Refused; anything else propagates and ends it.

        `decode` makes what `handler` gets out of a message. An answer that is a Future already costs no task.
        """
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: dict[Question, asyncio.Future[Reply]] = {}

        def received(frames: Sequence[Buffer]) -> None:
            if len(frames) != 3:
                return  # not one of our clients: without an id there is nothing to answer to
            question = (bytes(frames[0]), bytes(frames[1]))
            if question not in answers:
                answers[question] = answer = _begun(handler, decode, frames[2])
                answer.add_done_callback(lambda done: answered(question, done))

        def answered(question: Question, answer: asyncio.Future[Reply]) -> None:
            del answers[question]
            if answer.cancelled():
                return
            error = answer.exception()
            if error is None or isinstance(error, WireError):
                on_loop.send([*question, encode(Refused(str(error)) if error else answer.result())])
            elif not broken.done():
                broken.set_exception(error)

        on_loop = _OnLoop(self._socket, received)
        try:
            await broken
        finally:
            on_loop.close()
            tasks = [answer for answer in answers.values() if isinstance(answer, asyncio.Task)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        self._socket.close(linger=0)
