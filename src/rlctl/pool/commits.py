"""Group commit: events that arrive together are written together, then applied in the same order, then answered.

    submit(event) -> pending --[one batch]--> journal (thread: encode, write, fdatasync) -> store.apply -> replies
                                              the disk refuses: every event of the batch is answered with the error

So the state in memory is never ahead of the disk (or of Redis), and what was answered is on it. While one batch is
being written the one before is applied; where large events arrive meanwhile the writer takes them next, without
waiting for the loop. A snapshot is taken when nothing that is written waits to be applied.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from rlctl.errors import WireError
from rlctl.pool.ended import RETRY_S, EndedLog, EndedWriter
from rlctl.pool.state import Refusal
from rlctl.pool.storage.journal import Durable, record
from rlctl.pool.storage.segments import StorageError, Unsure
from rlctl.pool.store import Event, Store
from rlctl.telemetry.phases import Phases
from rlctl.wire.frames import Buffer
from rlctl.wire.messages import Reply
from rlctl.wire.samples import Ended

log = logging.getLogger(__name__)
TICK_S = 0.25
"""Deadlines and leases are looked at this often when nothing else happens."""
SMALL = 64 << 10
"""Bytes of an event up to which waiting for the disk is shorter than handing it to another thread and back."""
BATCH_EVENTS, BATCH_BYTES = 1024, 2 << 20
"""Of one commit, which begins no event beyond these: longer writes are no faster, and hold up those that follow."""
AT_HAND = 2
"""Batches that the writer has: the one it writes, and the one it takes next, without asking the loop."""
encode_state = msgspec.msgpack.Encoder().encode


class Pending(NamedTuple):
    """An event that is to be written."""

    event: Event
    received: Buffer
    """The message it came in; empty where there is none that says the same."""
    future: asyncio.Future[Reply]


class Batch(NamedTuple):
    """One commit; `now` (unix seconds) is the time that is written with its events, and that they are applied at."""

    events: list[Pending]
    now: float
    refused: StorageError | None


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
        self.ended = EndedWriter(ended, journal.confirm, self.phases)
        self._journal = journal
        self._journal_bytes = journal_bytes
        self._changed = changed
        self._clock = clock
        self._ended_too = ended_too
        self._pending: deque[Pending] = deque()
        """The loop appends, the writer takes."""
        self._large = False
        """A large event came after the writer was last called."""
        self._more = asyncio.Event()
        """Something is pending, or has been written."""
        self._writing: deque[asyncio.Future[Batch]] = deque()
        self._writer = ThreadPoolExecutor(1, "journal")
        self._snapshots = ThreadPoolExecutor(1, "snapshot")
        self._snapshot: asyncio.Future[None] | None = None
        self._full = False
        """The newest batch was refused: a snapshot that frees more than it takes is worth a try."""
        self._not_before = 0.0
        """Monotonic time of the next attempt, after a snapshot was refused."""

    def submit(self, event: Event, received: Buffer = b"") -> asyncio.Future[Reply]:
        """The reply comes once the event is on disk and applied; WireError if it was refused or could not be stored.

        `received`: the message that says the same, so that it need not be encoded again.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(event, received, future))
        self._large |= len(received) > SMALL
        self._more.set()
        return future

    async def run(self) -> None:
        """Commit until cancelled."""
        try:
            while True:
                await self.ended.keep_up()
                self._more.clear()
                if not self._writing and self._snapshot_due:
                    await self._begin_snapshot()
                self._write_on()
                if self._writing and self._writing[0].done():
                    self._land(self._writing.popleft().result())
                elif self._writing:
                    await self._more.wait()
                elif not self._pending:
                    await self._idle()
        finally:
            self._journal.interrupt()
            self._writer.shutdown()
            self.ended.close()
            self._snapshots.shutdown()

    async def _idle(self) -> None:
        """Wait for an event, or let time pass."""
        tick = asyncio.get_running_loop().call_later(TICK_S, self._more.set)
        try:
            await self._more.wait()
        finally:
            tick.cancel()
        if not self._pending:
            self.store.advance(self._clock())
            self._after()

    def _write_on(self) -> None:
        """Call the writer; before a snapshot, let it come to rest.

        Large events are at its hand while it still writes; small ones rather gather to one write.
        """
        if not self._pending or self._snapshot_due:
            return
        if self._lone:
            self._land(self._write())
        elif not self._writing or (self._large and len(self._writing) < AT_HAND):
            self._large = False
            writing = asyncio.get_running_loop().run_in_executor(self._writer, self._write)
            writing.add_done_callback(lambda _: self._more.set())
            self._writing.append(writing)

    @property
    def _lone(self) -> bool:
        """One small event, a local disk and an idle writer."""
        idle = self._journal.quick and not self._writing
        return idle and len(self._pending) == 1 and len(self._pending[0].received) <= SMALL

    def _write(self) -> Batch:
        """Write what is pending by now."""
        events, size = list[Pending](), 0
        while self._pending and len(events) < BATCH_EVENTS and size < BATCH_BYTES:
            events.append(self._pending.popleft())
            size += len(events[-1].received)
        now, refused = self._clock(), None
        try:
            with self.phases("write"):
                if events:  # the batch before may have taken all
                    self._journal.append([record(event, now, received) for event, received, _ in events])
        except StorageError as error:
            refused = error
        return Batch(events, now, refused)

    def _land(self, batch: Batch) -> None:
        if batch.refused:
            self._refuse(batch.events, batch.refused)
        else:
            self.commits += bool(batch.events)
            self._apply(batch)

    def _refuse(self, events: Sequence[Pending], error: StorageError) -> None:
        self._full = not isinstance(error, Unsure)
        log.error("%s: %d requests refused", error, len(events))
        what = "the pool acknowledges nothing" if isinstance(error, Unsure) else "the pool stored nothing"
        for one in events:
            if not one.future.done():
                one.future.set_exception(WireError(f"{what}: {error}"))

    def _apply(self, batch: Batch) -> None:
        self._full = False
        with self.phases("apply"):
            for event, _, future in batch.events:
                self._answer(event, future, batch.now)
        self._after()

    def _answer(self, event: Event, future: asyncio.Future[Reply], now: float) -> None:
        try:
            reply = self.store.apply(event, now)
        except Refusal as refusal:
            if not future.done():
                future.set_exception(refusal)
            return
        if not future.done():
            future.set_result(reply)

    def _after(self) -> None:
        """What follows a batch or a tick: wake those who wait, log the ended."""
        self._changed()
        ended = self.store.take_ended()
        self._ended_too(ended)
        self.ended.add(ended, self.store.take_notes())

    @property
    def _snapshot_due(self) -> bool:
        if time.monotonic() < self._not_before or (self._snapshot and not self._snapshot.done()):
            return False
        state_bytes = self.store.ledger.resident_bytes
        worth = state_bytes if self._full else max(self._journal_bytes, 2 * state_bytes)
        return self._journal.since_snapshot > worth

    async def _begin_snapshot(self) -> None:
        """Of the state as it is now, which all that is written has been applied to.

        What the old journal files could bring back must be in the log of the ended before they go.
        """
        loop = asyncio.get_running_loop()
        try:
            await self.ended.sync()
            offset = await loop.run_in_executor(self._writer, self._journal.cut)
        except (OSError, StorageError) as error:
            self._no_snapshot(error)
            return
        with self.phases("snapshot"):
            state = encode_state(self.store.state)
        self._snapshot = loop.run_in_executor(self._snapshots, self._store_snapshot, state, offset)

    def _store_snapshot(self, state: bytes, offset: int) -> None:
        try:
            self._journal.snapshot(state, offset)
        except StorageError as error:
            self._no_snapshot(error)

    def _no_snapshot(self, error: Exception) -> None:
        log.error("%s: no snapshot; the journal keeps growing", error)
        self._not_before = time.monotonic() + RETRY_S
