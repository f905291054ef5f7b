"""Live subscription over ZeroMQ PUB/SUB: the pool publishes, listeners come and go, nobody waits for them."""

import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq

from rlctl.errors import WireError
from rlctl.wire.messages import GetStatistics, Live
from rlctl.wire.sockets import AskBlocking

KEPT = 16
"""Messages a slow listener has waiting; newer ones are dropped for it."""
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Live).decode


class Publisher:
    """The pool's side; sending never waits."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, KEPT)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            if port:
                self._socket.bind(f"tcp://{host}:{port}")
            self.port: int = port or self._socket.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            raise WireError(f"cannot publish on tcp://{host}:{port}: {error}") from error

    def send(self, message: Live) -> None:
        self._socket.send(encode(message))

    def close(self) -> None:
        self._socket.close(linger=0)


class Listener:
    """Listens to the pool at `pool_url`, which it asks once for the port; WireError if it does not answer in time."""

    def __init__(self, pool_url: str, timeout_s: float = 5.0) -> None:
        ask = AskBlocking(pool_url, retry_s=1.0)
        try:
            port = ask.ask(GetStatistics(), timeout_s).live_port
        finally:
            ask.close()
        if not port:
            raise WireError(f"{pool_url} publishes nothing")
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, KEPT)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"tcp://{urlsplit(pool_url).hostname}:{port}")

    def listen(self, timeout_s: float) -> list[Live]:
        """All messages that have come; waits up to `timeout_s` for the first."""
        heard: list[Live] = []
        until = time.monotonic() + timeout_s
        while self._socket.poll(0 if heard else max(0, int((until - time.monotonic()) * 1000))):
            heard.append(decode(self._socket.recv()))
        return heard

    def close(self) -> None:
        self._socket.close(linger=0)
