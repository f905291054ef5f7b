"""Group commit: what arrives together is written together; what the disk refuses is told to everybody it concerns."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from rlctl.errors import WireError
from rlctl.pool.commits import Commits
from rlctl.pool.ended import EndedLog
from rlctl.pool.storage.journal import Durable, Journal, record
from rlctl.pool.storage.redis_journal import RedisJournal
from rlctl.pool.storage.segments import StorageError
from rlctl.wire.frames import Record, read_ended
from rlctl.wire.messages import CompleteTrajectory, Done, SubmitSteps
from tests.pool.make import rules, step

encode = msgspec.msgpack.Encoder().encode


class Stubborn:
    """A journal that refuses to write whenever `full` says so."""

    full = False
    appends_only = False
    snapshots_fail = 0
    gates: ClassVar[list[threading.Event]] = []
    """Each write waits for the next of them."""
    written: ClassVar[list[Record]] = []

    def append(self, records: list[Record]) -> None:
        if self.full and not self.appends_only:
            raise StorageError("cannot write: No space left on device")
        if self.gates:
            gate, self.gates = self.gates[0], self.gates[1:]
            assert gate.wait(5)
        self.written = [*self.written, *records]
        super().append(records)

    def snapshot(self, state: bytes, position: int) -> None:
        if self.full:
            self.snapshots_fail += 1
            raise StorageError("cannot write: No space left on device")
        super().snapshot(state, position)


class StubbornDisk(Stubborn, Journal):
    pass


class StubbornRedis(Stubborn, RedisJournal):
    pass


@pytest.fixture
async def journal(where: dict[str, str], tmp_path: Path) -> AsyncIterator[Stubborn]:
    if where:
        journal = StubbornRedis(where["pool.url"], uuid.uuid4().hex, wait_s=5)
        await journal.own("tests")
    else:
        journal = StubbornDisk(tmp_path / "pool")
    yield journal
    journal.close()


def committing(journal: Durable, tmp_path: Path, journal_bytes: int = 1 << 20) -> tuple[Commits, asyncio.Task[None]]:
    ended = EndedLog(tmp_path / "trajectories", 1 << 20)
    commits = Commits(journal.recover(rules()), journal, ended, journal_bytes, changed=lambda: None)
    return commits, asyncio.create_task(commits.run())


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_requests_that_arrive_together_share_one_write(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path)
    replies = await asyncio.gather(*(commits.submit(SubmitSteps([step("t", i)])) for i in range(500)))
    assert replies == [Done(accepted=1)] * 500
    assert commits.commits == 1
    await stop(task)


async def test_a_refused_write_is_answered_to_all_and_applied_to_nothing(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path)
    await commits.submit(SubmitSteps([step("t", 0)]))
    journal.full = True
    replies = await asyncio.gather(
        *(commits.submit(SubmitSteps([step("t", i)])) for i in (1, 2)), return_exceptions=True
    )
    assert all(isinstance(reply, WireError) and "No space left" in str(reply) for reply in replies)
    assert commits.store.statistics()["steps"] == 1
    journal.full = False
    assert await commits.submit(SubmitSteps([step("t", 1)])) == Done(accepted=1)
    await stop(task)


async def test_a_commit_is_answered_while_the_next_one_is_written(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path)
    gates = [threading.Event(), threading.Event()]
    journal.gates = list(gates)
    first = asyncio.gather(*(commits.submit(SubmitSteps([step("t", i)])) for i in (0, 1)))
    await asyncio.sleep(0.05)
    second = asyncio.gather(*(commits.submit(SubmitSteps([step("t", i)])) for i in (2, 3)))
    gates[0].set()
    assert await asyncio.wait_for(first, 5) == [Done(accepted=1)] * 2
    assert not second.done() and commits.store.statistics()["steps"] == 2, "nothing is applied before it is written"
    gates[1].set()
    assert await asyncio.wait_for(second, 5) == [Done(accepted=1)] * 2
    await stop(task)


@pytest.mark.parametrize("large", [True, False])
async def test_large_events_that_arrive_during_a_write_are_written_next_without_the_loop_and_small_ones_gather(
    large: bool, journal: Stubborn, tmp_path: Path
) -> None:
    commits, task = committing(journal, tmp_path)
    gate = threading.Event()
    journal.gates = [gate]
    requests = [SubmitSteps([step("t", i, tokens=20_000 if large else 3)]) for i in range(4)]
    futures = [commits.submit(one, encode(one)) for one in requests[:2]]
    await asyncio.sleep(0.05)
    futures += [commits.submit(one, encode(one)) for one in requests[2:]]
    await asyncio.sleep(0.05)
    gate.set()
    for _ in range(200 if large else 20):  # the loop stands still meanwhile
        if len(journal.written) == 4:
            break
        threading.Event().wait(0.01)
    written = len(journal.written)
    assert await asyncio.wait_for(asyncio.gather(*futures), 5) == [Done(accepted=1)] * 4
    assert (written, commits.commits) == (4 if large else 2, 2)
    await stop(task)


async def test_a_commit_ends_at_its_bytes_and_the_rest_follows(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path)
    requests = [SubmitSteps([step("t", i, tokens=100_000)]) for i in range(6)]  # 0.8 MB each
    replies = await asyncio.gather(*(commits.submit(one, encode(one)) for one in requests))
    assert replies == [Done(accepted=1)] * 6
    assert commits.commits == 2
    await stop(task)


async def test_snapshots_under_load_and_what_follows_them_bring_back_the_same_store(
    journal: Stubborn, tmp_path: Path
) -> None:
    commits, task = committing(journal, tmp_path, journal_bytes=5_000)

    async def agent(name: str) -> None:
        for i in range(40):
            await asyncio.gather(*(commits.submit(SubmitSteps([step(f"{name}.{i}", j)])) for j in range(2)))
            await commits.submit(CompleteTrajectory(f"{name}.{i}", 2, status="complete" if i % 2 else "failed"))

    await asyncio.gather(*(agent(name) for name in "abcd"))
    await stop(task)
    assert journal.since_snapshot < sum(len(b"".join(one)) for one in journal.written), "there was a snapshot"
    assert journal.recover(rules()).state == commits.store.state
    ended = [one.trajectory.uid for _, one in read_ended(tmp_path / "trajectories")]
    assert len(ended) == len(set(ended)) == 80


async def test_a_snapshot_that_fails_is_not_tried_at_every_request(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path, journal_bytes=1)
    journal.full = journal.appends_only = True
    for number in range(5):
        await commits.submit(CompleteTrajectory(f"t{number}", 0, status="failed"))
        await asyncio.sleep(0.02)
    assert journal.snapshots_fail == 1
    assert commits.store.statistics()["train.failed"] == 5
    await stop(task)


async def test_what_ended_is_in_the_log_before_the_journal_forgets_it(journal: Stubborn, tmp_path: Path) -> None:
    commits, task = committing(journal, tmp_path, journal_bytes=1)
    for number in range(20):
        await commits.submit(CompleteTrajectory(f"t{number}", 0, status="failed"))
    await asyncio.sleep(0.3)
    await stop(task)
    all_of_it = 20 * len(b"".join(record(CompleteTrajectory("t0", 0, status="failed"), 0.0)))
    assert journal.since_snapshot < all_of_it, "there was a snapshot"
    assert [one.trajectory.uid for _, one in read_ended(tmp_path / "trajectories")] == [f"t{n}" for n in range(20)]
    assert journal.recover(rules()).statistics()["train.failed"] == 20
