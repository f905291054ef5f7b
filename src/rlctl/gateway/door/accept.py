"""Accepts connections many at a time.

libuv, and with it uvloop, accepts one connection per turn of the event loop. A busy turn takes tens of milliseconds, so
of 256 clients that come together the last would wait for seconds.
"""

import asyncio
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)
BURST = 128
"""Connections accepted in one turn of the event loop."""
BACKLOG = 2048
FULL_S = 0.5
"""Wait after the process could open no further connection."""
Protocol = Callable[..., asyncio.Protocol]
"""`protocol(first=bytes)`: `first` has been read of the connection already."""


class Door:
    """The connections of one process: those at its listeners, and those that it is given."""

    def __init__(self, listeners: list[socket.socket], protocol: Protocol) -> None:
        self._listeners = listeners
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._loop.add_reader(listener, self._accept, listener)

    def admit(self, connection: socket.socket, first: bytes = b"") -> None:
        """Serve this connection."""
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = functools.partial(self._protocol, first=first)
        task = self._loop.create_task(self._loop.connect_accepted_socket(protocol, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BURST):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):  # another worker was faster, or the client gave up
                return
            except OSError as error:
                log.error("no further connection can be accepted: %s", error)
                self._loop.remove_reader(listener)
                self._loop.call_later(FULL_S, self._again, listener)
                return
            self.admit(connection)

    def _again(self, listener: socket.socket) -> None:
        if self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept no more."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners = []
