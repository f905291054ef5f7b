"""Group commit: events that arrive together are written together, then applied in the same order, then answered.

    submit(event) -> pending --[one batch]--> journal (thread: encode, write, fdatasync) -> store.apply -> replies
                                              the disk refuses: every event of the batch is answered with the error

So the state in memory is never ahead of the disk (or of Redis), and what was answered is on it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from rlctl.errors import WireError
from rlctl.pool.ended import EndedLog
from rlctl.pool.state import Refusal
from rlctl.pool.storage.journal import Durable, record
from rlctl.pool.storage.segments import StorageError, Unsure
from rlctl.pool.store import Event, Store
from rlctl.telemetry.phases import Phases
from rlctl.wire.frames import Buffer
from rlctl.wire.messages import Noted, Reply
from rlctl.wire.samples import Ended

log = logging.getLogger(__name__)
TICK_S = 0.25
"""Deadlines and leases are looked at this often when nothing else happens."""
RETRY_S = 10.0
"""After a snapshot or the log of the ended could not be written."""
SMALL = 64 << 10
"""Bytes of a lone event up to which waiting for the disk is shorter than handing it to another thread and back."""
BATCH_EVENTS = 1024
"""Events of one commit."""
encode_state = msgspec.msgpack.Encoder().encode


class Pending(NamedTuple):
    """An event that is to be written."""

    event: Event
    received: Buffer
    """The message it came in; empty where there is none that says the same."""
    future: asyncio.Future[Reply]


class Commits:
    """The only writer of the store."""

    def __init__(
        self,
        store: Store,
        journal: Durable,
        ended: EndedLog,
        journal_bytes: int,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        ended_too: Callable[[Sequence[Ended]], None] = lambda some: None,
    ) -> None:
        """`ended_too` hears of what has ended, once, before it is logged."""
        self.store = store
        self.phases = Phases()
        self.commits = 0
        self._journal = journal
        self._ended = ended
        self._journal_bytes = journal_bytes
        self._changed = changed
        self._clock = clock
        self._ended_too = ended_too
        self._pending: list[Pending] = []
        self._more = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, "journal")
        self._snapshots = ThreadPoolExecutor(1, "snapshot")
        self._snapshot: asyncio.Future[None] | None = None
        self._unwritten: list[Ended] = []
        self._notes: list[Noted] = []
        self._full = False
        """The newest batch was refused: a snapshot that frees more than it takes is worth a try."""
        self._not_before = 0.0
        """Monotonic time of the next attempt, after the disk refused something that can wait."""

    def submit(self, event: Event, received: Buffer = b"") -> asyncio.Future[Reply]:
        """The reply comes once the event is on disk and applied; WireError if it was refused or could not be stored.

        `received`: the message that says the same, so that it need not be encoded again.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(event, received, future))
        self._more.set()
        return future

    async def read_ended(self, cursor: int, limit: int) -> Reply:
        """Ended trajectories after `cursor` (read by the thread that also deletes old ones)."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._ended.read, cursor, limit)

    async def run(self) -> None:
        """Commit until cancelled."""
        try:
            while True:
                if not self._pending:
                    await self._wait()
                batch, self._pending = self._pending[:BATCH_EVENTS], self._pending[BATCH_EVENTS:]
                now = self._clock()
                if batch:
                    await self._commit(batch, now)
                else:
                    self.store.advance(now)
                await self._after()
        finally:
            self._journal.interrupt()
            self._writer.shutdown()
            self._snapshots.shutdown()

    async def _wait(self) -> None:
        self._more.clear()
        tick = asyncio.get_running_loop().call_later(TICK_S, self._more.set)
        try:
            await self._more.wait()
        finally:
            tick.cancel()

    async def _commit(self, batch: list[Pending], now: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._journal.quick and len(batch) == 1 and len(batch[0].received) <= SMALL:
                self._write(batch, now)
            else:
                await loop.run_in_executor(self._writer, self._write, batch, now)
        except StorageError as error:
            self._full = not isinstance(error, Unsure)
            log.error("%s: %d requests refused", error, len(batch))
            what = "the pool acknowledges nothing" if isinstance(error, Unsure) else "the pool stored nothing"
            for one in batch:
                if not one.future.done():
                    one.future.set_exception(WireError(f"{what}: {error}"))
            return
        self._full = False
        self.commits += 1
        with self.phases("apply"):
            for event, _, future in batch:
                self._apply(event, future, now)

    def _write(self, batch: list[Pending], now: float) -> None:
        with self.phases("write"):
            self._journal.append([record(event, now, received) for event, received, _ in batch])

    def _apply(self, event: Event, future: asyncio.Future[Reply], now: float) -> None:
        try:
            reply = self.store.apply(event, now)
        except Refusal as refusal:
            if not future.done():
                future.set_exception(refusal)
            return
        if not future.done():
            future.set_result(reply)

    async def _after(self) -> None:
        """What follows a batch or a tick: wake those who wait, log the ended, take a snapshot when it is time."""
        self._changed()
        ended = self.store.take_ended()
        self._ended_too(ended)
        self._unwritten += ended
        self._notes += self.store.take_notes()
        loop = asyncio.get_running_loop()
        if time.monotonic() < self._not_before:
            return
        if self._unwritten or self._notes:
            try:
                await loop.run_in_executor(self._writer, self._write_ended)
            except StorageError as error:
                log.error("%s: %d ended trajectories wait to be logged", error, len(self._unwritten))
                self._not_before = time.monotonic() + RETRY_S
                return
        state_bytes = self.store.ledger.resident_bytes
        worth = state_bytes if self._full else max(self._journal_bytes, 2 * state_bytes)
        if self._journal.since_snapshot > worth:
            await self.snapshot()

    def _write_ended(self) -> None:
        with self.phases("log_ended"):
            self._journal.confirm()
            self._ended.write(self._unwritten)
            self._ended.write_notes(self._notes)
        self._unwritten.clear()
        self._notes.clear()

    async def snapshot(self) -> None:
        """Begin a snapshot of the state as it is now, unless one is still being written."""
        if self._snapshot and not self._snapshot.done():
            return
        loop = asyncio.get_running_loop()
        try:
            offset = await loop.run_in_executor(self._writer, self._cut)
        except (OSError, StorageError) as error:
            self._no_snapshot(error)
            return
        with self.phases("snapshot"):
            state = encode_state(self.store.state)
        self._snapshot = loop.run_in_executor(self._snapshots, self._store_snapshot, state, offset)

    def _cut(self) -> int:
        """What the old journal files could bring back must be in the log of the ended before they go."""
        self._ended.sync()
        return self._journal.cut()

    def _store_snapshot(self, state: bytes, offset: int) -> None:
        try:
            self._journal.snapshot(state, offset)
        except StorageError as error:
            self._no_snapshot(error)

    def _no_snapshot(self, error: Exception) -> None:
        log.error("%s: no snapshot; the journal keeps growing", error)
        self._not_before = time.monotonic() + RETRY_S
