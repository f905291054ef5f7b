"""The logs in `trajectories/`: `ended-OFFSET.log` of ended trajectories, `feedback-OFFSET.log` of the feedback."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from rlctl.pool.storage.segments import Segments
from rlctl.wire import frames
from rlctl.wire.messages import Finished, Noted
from rlctl.wire.samples import Ended

encode = msgspec.msgpack.Encoder().encode
FILES = 16
"""The limit is kept by deleting whole files; this many make up the limit."""


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
        """Append; StorageError when the disk refuses (then nothing is kept, and the same call may be made again)."""
        new = [one for one in ended if one.number > self.last]
        if not new or not self.limit_bytes:
            return
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


def _last_number(directory: Path, stream: str, kind: type[Ended] | type[Noted]) -> int:
    for _, file in reversed(frames.files(directory, stream)):
        if newest := deque(frames.read(file), maxlen=1):
            return msgspec.msgpack.decode(newest[0][1], type=kind).number
    return 0
