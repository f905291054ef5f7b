"""Writes a stream of record files (`wire.frames`): append, sync, rotate, delete from the front, recover a torn tail."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

from rlctl.disk.files import sync
from rlctl.errors import RlctlError
from rlctl.wire import frames
from rlctl.wire.frames import Buffer, Record

log = logging.getLogger(__name__)
VECTOR = os.sysconf("SC_IOV_MAX")
"""Buffers that one writev takes."""
AHEAD = 1 << 20
"""Bytes of zeros written ahead of small synced appends: a file that does not grow need not sync its size, too."""
SMALL = 64 << 10
"""Bytes of an append up to which that is worth writing twice."""


class StorageError(RlctlError):
    """The disk (or Redis) refused; nothing of the append is kept."""


class Unsure(StorageError):
    """Redis did not answer: it may have what was sent. Nothing of it is acknowledged; the next append deletes it."""


class Segments:
    """One stream; the last file is open for appending. Not thread-safe."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory = directory
        self.prefix = prefix
        directory.mkdir(parents=True, exist_ok=True)
        existing = frames.files(directory, prefix)
        self._base, last = existing[-1] if existing else (0, frames.path(directory, prefix, 0))
        good = cut_torn_tail(last) if existing else 0
        self._file = os.open(last, os.O_WRONLY | os.O_CREAT, 0o644)
        self.end = self._base + good
        """Position in the stream after the last record."""
        os.lseek(self._file, good, os.SEEK_SET)
        self._zeroed = good
        """Length of the open file; zeros follow the last record."""
        sync(directory)

    def append(self, records: Iterable[Record], sync: bool) -> None:
        """Write the records and, with `sync`, force them to disk; all of them or none."""
        parts = list(chain.from_iterable(records))
        length = sum(map(len, parts))
        good = self.end - self._base
        try:
            write(self._file, parts)
            if sync:
                os.fdatasync(self._file)
        except OSError as error:
            self._cut(good)
            raise StorageError(f"cannot write {length} bytes to {self.directory}: {error.strerror}") from error
        self.end += length
        self._zeroed = max(self._zeroed, good + length)
        if sync and length <= SMALL and self._zeroed == good + length:
            self._write_ahead()

    def _write_ahead(self) -> None:
        """The next append syncs the zeros; where the disk has no room for them, it goes without."""
        after = self.end - self._base
        try:
            self._zeroed = after + os.pwrite(self._file, bytes(AHEAD), after)
        except OSError:
            self._cut(after)

    def _cut(self, length: int) -> None:
        """Give the open file this length."""
        os.ftruncate(self._file, length)
        os.lseek(self._file, length, os.SEEK_SET)
        self._zeroed = length

    def sync(self) -> None:
        os.fdatasync(self._file)

    def rotate(self) -> int:
        """Begin a new file; returns its offset."""
        if self.end > self._base:
            self._cut(self.end - self._base)
            os.fdatasync(self._file)
            file = os.open(frames.path(self.directory, self.prefix, self.end), os.O_WRONLY | os.O_CREAT, 0o644)
            os.close(self._file)
            self._file, self._base, self._zeroed = file, self.end, 0
            sync(self.directory)
        return self._base

    def delete_before(self, offset: int) -> None:
        """Delete the files that end at or before `offset` (never the open one)."""
        existing = frames.files(self.directory, self.prefix)
        for (_, file), (following, _) in pairwise(existing):
            if following <= offset:
                file.unlink()

    def read(self, offset: int) -> Iterator[bytes]:
        """Payloads from `offset` on, which must be where a file begins. A broken record is an error here."""
        existing = [(base, file) for base, file in frames.files(self.directory, self.prefix) if base >= offset]
        position = offset
        for base, file in existing:
            if base != position:
                raise StorageError(f"{file}: damaged or missing records before it: bytes {position} to {base}")
            for after, payload in frames.read(file):
                position = base + after
                yield payload
        if position != self.end:
            raise StorageError(f"{self.directory}: records from byte {position} to {self.end} are missing or damaged")

    def close(self) -> None:
        if self._zeroed > self.end - self._base:
            self._cut(self.end - self._base)
        os.close(self._file)


def write(descriptor: int, parts: Sequence[Buffer]) -> None:
    """All of `parts` in a row, without joining them first; OSError may leave some of them written."""
    for at in range(0, len(parts), VECTOR):
        vector = parts[at : at + VECTOR]
        written = os.writev(descriptor, vector)
        if written < sum(map(len, vector)):  # the disk took a part: what is left shows why
            rest = memoryview(b"".join(vector))[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]


def cut_torn_tail(file: Path) -> int:
    """Truncate after the last whole record (what follows was never acknowledged); returns the length kept."""
    good = max((after for after, _ in frames.read(file)), default=0)
    with file.open("rb") as source:
        source.seek(good)
        torn = len(source.read().rstrip(b"\0"))
    if torn:
        log.warning("%s: cut %d bytes after the last whole record (a write was interrupted)", file, torn)
    os.truncate(file, good)
    return good
