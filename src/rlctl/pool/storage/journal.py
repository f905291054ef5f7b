"""Durability: a journal of the events with their times, and snapshots of the state that allow old files to go.

    pool/journal-OFFSET.log    frames of [time f64][msgpack request], from OFFSET on
    pool/snapshot-OFFSET       one frame: the state after every event before OFFSET
    pool/lock                  held by the running pool

Recovery loads the newest snapshot and replays the journal from there through the store itself: one code path.
`Durable` is what the pool needs of a place that keeps this; `Journal` is the local disk, `redis_journal` a Redis.
"""

import asyncio
import fcntl
import logging
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from rlctl.disk.files import sync
from rlctl.errors import RlctlError
from rlctl.pool.state import Refusal, Rules, State
from rlctl.pool.storage.segments import Segments, StorageError, write
from rlctl.pool.store import Event, Store
from rlctl.wire import frames
from rlctl.wire.frames import Buffer, Record

log = logging.getLogger(__name__)
TIME = struct.Struct("<d")
PACE = 4 << 20
"""Bytes of a snapshot that are forced to disk at a time: a commit that comes meanwhile need not wait for all of it."""
encode = msgspec.msgpack.Encoder().encode


def record(event: Event, now: float, received: Buffer = b"") -> Record:
    """The journal's frame for one event; `received`: the message it was decoded from, which is stored as it is."""
    return frames.pieces(TIME.pack(now), received or encode(event))


class Durable(Protocol):
    """What makes a pool durable. `append` and `cut` run in one thread, `snapshot` in another one."""

    quick: bool
    """`append` waits for a local disk only."""

    @property
    def since_snapshot(self) -> int:
        """Bytes that a recovery would replay."""

    def recover(self, rules: Rules) -> Store:
        """The store as it was: snapshot, then every event after it."""

    def append(self, records: list[Record]) -> None:
        """Durable when it returns; StorageError and nothing kept when it is refused."""

    def cut(self) -> int:
        """The position that a snapshot of the state as it is now stands for."""

    def snapshot(self, state: bytes, position: int) -> None:
        """Store the encoded state as of `position`, then free what it replaces; StorageError if it is refused."""

    def confirm(self) -> None:
        """Before anything is written beside the journal: RlctlError when this journal is no longer our own."""

    async def keep(self) -> None:
        """Runs beside the pool; ends with an error when this journal is no longer its own."""

    def interrupt(self) -> None:
        """Let no call wait any longer."""

    def close(self) -> None:
        """Let go of everything."""


def replay(store: Store, payloads: Iterable[bytes]) -> int:
    """Run journaled events through the store; returns how many there were."""
    decode = msgspec.msgpack.Decoder(Event).decode
    events = 0
    for payload in payloads:
        (now,) = TIME.unpack_from(payload)
        with suppress(Refusal):  # it was refused then, too, and changed nothing
            store.apply(decode(memoryview(payload)[TIME.size :]), now)
        events += 1
    return events


class Journal:
    """The journal of one pool directory (see Durable)."""

    quick = True

    def __init__(self, directory: Path, fsync: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.fsync = fsync
        self._lock = _locked(directory / "lock")
        self.segments = Segments(directory, "journal")
        self.snapshot_at = max((offset for offset, _ in _snapshots(directory)), default=0)
        """Offset of the newest snapshot."""

    @property
    def since_snapshot(self) -> int:
        """Bytes that a recovery would replay."""
        return self.segments.end - self.snapshot_at

    def append(self, records: list[Record]) -> None:
        """On disk when it returns (with fsync); StorageError and nothing kept when the disk refuses."""
        self.segments.append(records, sync=self.fsync)

    def recover(self, rules: Rules) -> Store:
        """The store as it was: snapshot, then every event after it."""
        state = None
        for offset, file in _snapshots(self.directory):
            if offset == self.snapshot_at:
                state = _load_snapshot(file)
        store = Store(rules, state)
        events = replay(store, self.segments.read(self.snapshot_at))
        if state or events:
            log.info("recovered %d live trajectories from %d events", len(store.state.trajectories), events)
        return store

    def cut(self) -> int:
        """Begin a new file; its offset."""
        return self.segments.rotate()

    def snapshot(self, state: bytes, position: int) -> None:
        """Store the encoded state as of `position` (where a journal file begins), then delete what it replaces."""
        target = self.directory / f"snapshot-{position:016d}"
        temporary = target.with_suffix(".tmp")
        try:
            with temporary.open("wb", buffering=0) as file:
                head, body = frames.pieces(state)
                write(file.fileno(), [head])
                for at in range(0, len(body), PACE):
                    write(file.fileno(), [memoryview(body)[at : at + PACE]])
                    os.fsync(file.fileno())
            temporary.replace(target)
            sync(self.directory)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StorageError(f"cannot write {target}: {error.strerror}") from error
        self.snapshot_at = position
        for older, path in _snapshots(self.directory):
            if older < position:
                path.unlink()
        self.segments.delete_before(position)

    def confirm(self) -> None:
        """The lock holds as long as the process lives."""

    async def keep(self) -> None:
        """The lock holds as long as the process lives."""
        await asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        """A disk is not waited for."""

    def close(self) -> None:
        self.segments.close()
        os.close(self._lock)


def _snapshots(directory: Path) -> list[tuple[int, Path]]:
    return [(int(path.name.rpartition("-")[2]), path) for path in directory.glob("snapshot-" + "[0-9]" * 16)]


def _load_snapshot(file: Path) -> State:
    for _, payload in frames.read(file):
        return msgspec.msgpack.decode(payload, type=State)
    raise StorageError(f"{file}: damaged snapshot")


def _locked(path: Path) -> int:
    """An exclusive lock that ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RlctlError(f"{path.parent}: another pool is running on this directory") from None
    return descriptor
