"""The real process: waiting, durability under SIGKILL, a disk that is full."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from rlctl.errors import WireError
from rlctl.wire.frames import read_ended, read_feedback
from rlctl.wire.messages import (
    Ack,
    Busy,
    CompleteTrajectory,
    Evaluate,
    Feedback,
    FetchBatch,
    GetStatistics,
    GroupOpened,
    Nack,
    OpenGroup,
    SubmitScores,
    SubmitSteps,
    TakeFinished,
    TakeUnscored,
)
from rlctl.wire.samples import Score
from rlctl.wire.sockets import Ask
from tests.pool.chaos import chaos
from tests.pool.make import step
from tests.pool.process import PoolProcess


@pytest.fixture
def pool(tmp_path: Path, where: dict[str, str]) -> Iterator[PoolProcess]:
    process = PoolProcess(tmp_path, **{"train.groups_per_step": 2, "pool.max_staleness": 1, **where})
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def ask(pool: PoolProcess) -> AsyncIterator[Ask]:
    client = Ask(pool.url, retry_s=0.3)
    yield client
    client.close()


async def statistics(ask: Ask) -> dict[str, float]:
    return (await ask.ask(GetStatistics())).values


async def test_a_sample_goes_all_the_way_and_stays_readable(pool: PoolProcess, ask: Ask) -> None:
    assert await ask.ask(OpenGroup("p", ["p.0", "p.1"], env="lake", task={"q": "2+2"})) == GroupOpened("p", -1)
    taking = asyncio.create_task(ask.ask(TakeUnscored(wait_s=10)))
    fetching = asyncio.create_task(ask.ask(FetchBatch(1, wait_s=10)))
    await ask.ask(SubmitSteps([step("p.0"), step("p.1")]))
    await ask.ask(CompleteTrajectory("p.0", 1))
    (first,) = (await taking).trajectories
    await ask.ask(SubmitScores([Score(first.uid, 0.5, {"env": 0.5})]))
    assert not fetching.done()
    await ask.ask(CompleteTrajectory("p.1", 1, reward=1.0))
    batch = await fetching
    assert [t.reward for t in batch.groups[0].trajectories] == [0.5, 1.0]
    await ask.ask(Ack(batch.lease, {"p.0": "trained", "p.1": "zero_variance"}))
    await asyncio.sleep(0.5)
    finished = await ask.ask(TakeFinished())
    assert finished.outcomes == ["trained", "zero_variance"]
    assert finished.trajectories[0].steps[0] == step("p.0")
    assert (await ask.ask(TakeFinished(finished.cursor))).trajectories == []
    assert pool.stop() == 0
    assert [one.trajectory for _, one in read_ended(pool.directory / "trajectories")] == finished.trajectories


async def test_a_full_pool_makes_the_asker_wait_until_a_slot_is_free(ask: Ask) -> None:
    for i in range(4):
        await ask.ask(OpenGroup(f"p{i}", [f"p{i}.0"]))
    start = time.monotonic()
    assert isinstance(await ask.ask(OpenGroup("late", ["late.0"], wait_s=0.4)), Busy)
    assert 0.35 < time.monotonic() - start < 3
    waiting = asyncio.create_task(ask.ask(OpenGroup("late", ["late.0"], wait_s=20)))
    await asyncio.sleep(0.7)  # the client has sent its question again meanwhile: still one slot
    assert not waiting.done()
    await ask.ask(CompleteTrajectory("p1.0", 0, status="failed"))
    assert await asyncio.wait_for(waiting, 5) == GroupOpened("late", -1)
    assert (await statistics(ask))["train.created"] == 5


async def test_a_question_for_somebody_else_is_refused_by_name(ask: Ask) -> None:
    with pytest.raises(WireError, match="the pool does not answer Evaluate"):
        await ask.ask(Evaluate(0))


async def test_a_lease_survives_a_crash_and_its_ack_counts_once(pool: PoolProcess, ask: Ask) -> None:
    for name in ("a", "b"):
        await ask.ask(SubmitSteps([step(name)]))
        await ask.ask(CompleteTrajectory(name, 1, reward=1.0))
    batch = await ask.ask(FetchBatch(1, lease="mine"))
    pool.kill()
    pool.start()
    assert await ask.ask(FetchBatch(1, lease="mine")) == batch
    other = await ask.ask(FetchBatch(1, lease="other"))
    assert [g.prompt_uid for g in (*batch.groups, *other.groups)] == ["a", "b"]
    assert (await ask.ask(Ack("mine", {"a": "trained"}))).accepted == 1
    pool.kill()
    pool.start()
    assert (await ask.ask(Ack("mine", {"a": "trained"}))).duplicate == 1
    assert (await statistics(ask))["train.trained"] == 1


async def test_a_batch_is_not_lent_to_a_trainer_that_was_replaced_while_it_waited(pool: PoolProcess, ask: Ask) -> None:
    dead = Ask(pool.url)
    waiting = asyncio.create_task(dead.ask(FetchBatch(1, wait_s=20, lease="of the dead")))
    await asyncio.sleep(0.3)
    await ask.ask(Nack(""))
    await ask.ask(SubmitSteps([step("t")]))
    await ask.ask(CompleteTrajectory("t", 1, reward=1.0))
    assert (await waiting).lease == ""
    assert (await ask.ask(FetchBatch(1, wait_s=0.0, lease="of the living"))).lease == "of the living"
    dead.close()


async def test_feedback_survives_a_crash_and_is_logged_once_also_after_the_end(pool: PoolProcess, ask: Ask) -> None:
    await ask.ask(SubmitSteps([step("t")]))
    await ask.ask(CompleteTrajectory("t", 1, reward=1.0))
    assert (await ask.ask(Feedback("t", 0.5, uid="early"))).rescored
    pool.kill()
    pool.start()
    assert (await ask.ask(Feedback("t", 0.5, uid="early"))).duplicate
    batch = await ask.ask(FetchBatch(1))
    assert batch.groups[0].trajectories[0].reward == 1.5
    await ask.ask(Ack(batch.lease, {"t": "trained"}))
    assert not (await ask.ask(Feedback("t", -1.0, text="late", uid="late"))).rescored
    pool.kill()
    pool.start()
    await asyncio.sleep(0.5)
    pool.stop()
    noted = list(read_feedback(pool.directory / "trajectories"))
    assert [(one.number, one.feedback.uid, one.rescored) for one in noted] == [(1, "early", True), (2, "late", False)]


async def test_sigkill_under_load_loses_nothing_and_doubles_nothing(tmp_path: Path, where: dict[str, str]) -> None:
    pool = PoolProcess(tmp_path, **{"train.groups_per_step": 8, "pool.journal_mb": 1, **where})
    await chaos(pool.start(), [pool], kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_many_sigkills_under_load_lose_nothing(tmp_path: Path, seed: int) -> None:
    pool = PoolProcess(tmp_path, **{"train.groups_per_step": 8, "pool.journal_mb": 1})
    await chaos(pool.start(), [pool], kills=40, seed=seed)


async def test_a_full_disk_is_a_clear_error_and_nothing_acknowledged_is_missing(tmp_path: Path) -> None:
    pool = PoolProcess(tmp_path).start(file_size_limit=300_000)
    ask = Ask(pool.url, retry_s=5)
    stored, refused = 0, ""
    for index in range(200):
        try:
            await ask.ask(SubmitSteps([step("t", index, tokens=500)]))
            stored += 1
        except WireError as error:
            refused = str(error)
            break
    assert "the pool stored nothing: cannot write" in refused
    assert "File too large" in refused
    assert 50 < stored < 100
    assert (await statistics(ask))["steps"] == stored, "memory is not ahead of the disk"
    pool.kill()
    pool.start()
    assert (await statistics(ask))["steps"] == stored
    assert (await ask.ask(SubmitSteps([step("t", stored, tokens=500)]))).accepted == 1
    ask.close()
    pool.stop()


async def test_the_journal_is_reclaimed_when_its_samples_have_ended(tmp_path: Path, where: dict[str, str]) -> None:
    pool = PoolProcess(tmp_path, **{"pool.journal_mb": 1, "pool.trajectories_mb": 1, **where}).start()
    ask = Ask(pool.url)
    for episode in range(60):
        uid = f"t{episode}"
        await ask.ask(SubmitSteps([step(uid, i, tokens=5000) for i in range(4)]))
        await ask.ask(CompleteTrajectory(uid, 4, reward=1.0))
        batch = await ask.ask(FetchBatch(1))
        await ask.ask(Ack(batch.lease, {uid: "trained"}))
    await asyncio.sleep(0.6)
    ask.close()
    pool.stop()
    assert 60 * 4 * 5000 * 8 > 9_000_000 > 3 * journal_bytes(tmp_path / "pool", where)
    assert sum(file.stat().st_size for file in (tmp_path / "trajectories").iterdir()) < 1.2 * (1 << 20)


def journal_bytes(directory: Path, where: dict[str, str]) -> int:
    """What the run's journal takes, on disk or in Redis."""
    if not where:
        return sum(file.stat().st_size for file in directory.iterdir())
    run = (directory / "redis-run").read_text().strip()
    with redis.Redis.from_url(where["pool.url"]) as look:
        return sum(look.memory_usage(key) for key in look.scan_iter(f"rlctl:{{{run}}}:*"))


def test_without_a_run_directory_the_pool_says_what_is_missing(tmp_path: Path) -> None:
    from rlctl.config import load
    from rlctl.errors import ConfigError
    from rlctl.pool.server import main

    (tmp_path / "p.toml").write_text("[model]\ninit = 'tiny'\n")
    with pytest.raises(ConfigError, match=r"run\.dir is not set"):
        main(load([str(tmp_path / "p.toml")], environ={}).config)
