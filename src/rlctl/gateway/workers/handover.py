"""A connection moves to the worker that owns the trajectory its next request names.

    accepted by any worker --first bytes name another's trajectory--> socket and bytes go to the owner's inbox
                                                                      (SCM_RIGHTS) --> the owner serves it from there

Nothing is relayed: from then on the client talks to the owner directly, streams and broken connections included. A
client with a connection of its own moves once; one that shares a pool among trajectories moves when the owner changes.
"""

import asyncio
import os
import socket
import tempfile
from collections import deque
from typing import Any

from rlctl.gateway.door.accept import Door
from rlctl.gateway.workers.worker import Worker

INLINE = 32768
"""Bytes that travel in the datagram; more go through a file without a name."""
BURST = 64


class Handover:
    """Gives connections to other workers and takes theirs. One per worker process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, deque[tuple[bytes, list[int]]]] = {}
        """What a full inbox does not take yet, by its descriptor."""

    def elsewhere(self, uid: str) -> bool:
        return not self._worker.owns(uid)

    def take(self, door: Door) -> None:
        """Serve what other workers give, from now on."""
        inbox = self._worker.inboxes[self._worker.index][0]
        self._loop.add_reader(inbox, self._drain, inbox, door)

    def give(self, uid: str, transport: Any, data: bytes) -> None:
        """The connection, with what has been read of it, to the worker that owns `uid`."""
        transport.pause_reading()
        descriptors = [os.dup(transport.get_extra_info("socket").fileno())]
        transport.abort()  # closes this process's descriptor only: the connection stays open
        if len(data) > INLINE:
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.flush()
                descriptors.append(os.dup(file.fileno()))
            data = b""
        outbox = self._worker.inboxes[self._worker.owner(uid)][1]
        waiting = self._waiting.setdefault(outbox.fileno(), deque())
        waiting.append((data, descriptors))
        if len(waiting) == 1:
            self._send(outbox)

    def _send(self, outbox: socket.socket) -> None:
        waiting = self._waiting[outbox.fileno()]
        while waiting:
            data, descriptors = waiting[0]
            try:
                socket.send_fds(outbox, [data], descriptors)
            except BlockingIOError:
                self._loop.add_writer(outbox, self._send, outbox)
                return
            waiting.popleft()
            for one in descriptors:
                os.close(one)
        self._loop.remove_writer(outbox)

    def _drain(self, inbox: socket.socket, door: Door) -> None:
        for _ in range(BURST):
            try:
                data, descriptors, _, _ = socket.recv_fds(inbox, INLINE, 2)
            except BlockingIOError:
                return
            if len(descriptors) == 2:
                with os.fdopen(descriptors.pop(), "rb") as file:
                    file.seek(0)
                    data = file.read()
            if not descriptors:
                continue  # this process may open no more files: the kernel has closed the connection
            door.admit(socket.socket(fileno=descriptors[0]), data)

    def close(self) -> None:
        for inbox, outbox in self._worker.inboxes:
            self._loop.remove_reader(inbox)
            self._loop.remove_writer(outbox)
        for waiting in self._waiting.values():
            for _, descriptors in waiting:
                for one in descriptors:
                    os.close(one)
