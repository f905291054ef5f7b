"""The logs in `trajectories/`: `ended-OFFSET.log` of ended trajectories, `feedback-OFFSET.log` of the feedback."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import msgspec

from rlctl.pool.storage.segments import Segments, StorageError
from rlctl.telemetry.phases import Phases
from rlctl.wire import frames
from rlctl.wire.messages import Finished, Noted
from rlctl.wire.samples import Ended

log = logging.getLogger(__name__)
encode = msgspec.msgpack.Encoder().encode
FILES = 16
"""The limit is kept by deleting whole files; this many make up the limit."""
RETRY_S = 10.0
"""After the disk refused what can wait: this log, or a snapshot."""
BACKLOG = 512
"""Trajectories that may wait to be logged, in memory, before commits wait for it."""
TOGETHER = 32
"""Trajectories that are encoded, in memory a second time, before they are written."""


class EndedLog:
    """Each trajectory once, also when a replay ends it a second time: records are numbered."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._segments = Segments(directory, "ended")
        self._feedback = Segments(directory, "feedback")
        self._file_began = self._segments.rotate()
        self.last = _last_number(directory, "ended", Ended)
        """Number of the newest record."""
        self.last_note = _last_number(directory, "feedback", Noted)

    def write(self, ended: Sequence[Ended]) -> None:
        """Append; StorageError when the disk refuses. The same call may be made again: what is kept is skipped."""
        new = [one for one in ended if one.number > self.last] if self.limit_bytes else []
        for at in range(0, len(new), TOGETHER):
            self._append(new[at : at + TOGETHER])

    def _append(self, new: Sequence[Ended]) -> None:
        self._segments.append([frames.pieces(encode(one)) for one in new], sync=False)
        self.last = new[-1].number
        if self._segments.end - self._file_began > self.limit_bytes // FILES:
            self._file_began = self._segments.rotate()
            self._segments.delete_before(self._segments.end - self.limit_bytes)

    def write_notes(self, notes: Sequence[Noted]) -> None:
        """Append feedback, which is small and all kept; StorageError as for `write`."""
        new = [one for one in notes if one.number > self.last_note]
        if new:
            self._feedback.append([frames.pieces(encode(one)) for one in new], sync=False)
            self.last_note = new[-1].number

    def sync(self) -> None:
        self._segments.sync()
        self._feedback.sync()

    def read(self, cursor: int, limit: int) -> Finished:
        """Up to `limit` records after `cursor`."""
        found = list(islice(frames.read_ended(self.directory, cursor), limit))
        return Finished(
            cursor=found[-1][0] if found else cursor,
            trajectories=[one.trajectory for _, one in found],
            outcomes=[one.outcome for _, one in found],
        )

    def close(self) -> None:
        self._segments.close()
        self._feedback.close()


class EndedWriter:
    """Writes the log behind the commits, in a thread of its own and in their order; what is read comes after them."""

    def __init__(self, ended: EndedLog, confirm: Callable[[], None], phases: Phases) -> None:
        """`confirm`: raises an error if this pool may not write any more."""
        self._log = ended
        self._confirm = confirm
        self._phases = phases
        self._thread = ThreadPoolExecutor(1, "ended")
        self._ended: list[Ended] = []
        self._notes: list[Noted] = []
        """Not written yet: the loop appends, the thread takes from the front."""
        self._writing: asyncio.Future[None] | None = None
        self._refused: StorageError | None = None
        self._not_before = 0.0

    def add(self, ended: Sequence[Ended], notes: Sequence[Noted]) -> None:
        """Write these, and what the disk refused before."""
        self._ended += ended
        self._notes += notes
        if (self._ended or self._notes) and time.monotonic() >= self._not_before:
            self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write)

    def _write(self) -> None:
        ended, notes = self._ended[:], self._notes[:]
        self._refused = None
        try:
            with self._phases("log_ended"):
                self._confirm()
                self._log.write(ended)
                self._log.write_notes(notes)
        except StorageError as error:
            log.error("%s: %d ended trajectories wait to be logged", error, len(ended))
            self._refused, self._not_before = error, time.monotonic() + RETRY_S
        else:
            del self._ended[: len(ended)]
            del self._notes[: len(notes)]

    async def keep_up(self) -> None:
        """Wait while too much is unwritten; what ended the writing (but for a full disk) ends the caller."""
        if self._writing and (self._writing.done() or (len(self._ended) > BACKLOG and not self._refused)):
            await self._writing

    async def sync(self) -> None:
        """All that was added is on disk; StorageError if it is not."""
        if self._writing:
            await self._writing
        if self._refused:
            raise self._refused
        await asyncio.get_running_loop().run_in_executor(self._thread, self._log.sync)

    async def read(self, cursor: int, limit: int) -> Finished:
        """Ended trajectories after `cursor`; by the thread that also deletes old ones."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._log.read, cursor, limit)

    def close(self) -> None:
        """Wait until what was added is written."""
        self._thread.shutdown()


def _last_number(directory: Path, stream: str, kind: type[Ended] | type[Noted]) -> int:
    for _, file in reversed(frames.files(directory, stream)):
        if newest := deque(frames.read(file), maxlen=1):
            return msgspec.msgpack.decode(newest[0][1], type=kind).number
    return 0
