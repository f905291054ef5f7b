"""What one of several worker processes knows of the others. They share sockets that their parent made, and no state.

    owner of a trajectory = crc32(its uid) mod number of workers

A rule instead of a table: every worker, also one that was just restarted, knows it without asking.
"""

import socket
import uuid
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Worker:
    """The only worker, unless told otherwise."""

    index: int = 0
    count: int = 1
    restarted: bool = False
    """Another process had this place before and died."""
    inboxes: tuple[tuple[socket.socket, socket.socket], ...] = ()
    """(read end, write end) by worker: datagrams that carry connections."""
    addresses: tuple[str, ...] = ()
    """Path of the Unix socket on which each worker answers the others."""
    listener: socket.socket | None = None
    """This worker's own such socket."""

    def owner(self, uid: str) -> int:
        """Which worker has this trajectory."""
        return crc32(uid.encode()) % self.count

    def owns(self, uid: str) -> bool:
        return self.count == 1 or self.owner(uid) == self.index

    def new_uid(self) -> str:
        """For a new trajectory of this worker; `count` tries on average."""
        while not self.owns(uid := uuid.uuid4().hex):
            pass
        return uid
