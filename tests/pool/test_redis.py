"""The real pool over a real Redis: Redis killed, away, full, forgetful; two pools for one run."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis as client

from rlctl.errors import WireError
from rlctl.wire.frames import read_ended
from rlctl.wire.messages import (
    CompleteTrajectory,
    GetStatistics,
    SubmitSteps,
)
from rlctl.wire.ports import free_port
from rlctl.wire.sockets import Ask, AskBlocking
from tests.pool.chaos import chaos
from tests.pool.make import step
from tests.pool.process import PoolProcess
from tests.pool.redis_server import RedisServer, needs_redis

pytestmark = needs_redis
KILLS = int(os.environ.get("RLCTL_CHAOS_KILLS", "40"))


@pytest.fixture
def pool(tmp_path: Path, redis: RedisServer) -> Iterator[PoolProcess]:
    settings = {"pool.url": redis.url, "pool.redis_wait_s": 1}
    process = PoolProcess(tmp_path, **settings).start()
    yield process
    process.kill()


@pytest.fixture
async def ask(pool: PoolProcess) -> AsyncIterator[Ask]:
    client = Ask(pool.url, retry_s=5)
    yield client
    client.close()


def standby(pool: PoolProcess) -> PoolProcess:
    """A second pool for the same run, at another address."""
    settings = {name: value for name, value in pool.settings.items() if name.startswith("pool.") and "port" not in name}
    return PoolProcess(pool.directory, **settings)


async def steps_stored(ask: Ask) -> float:
    return (await ask.ask(GetStatistics())).values.get("steps", 0)


@pytest.fixture
def busy_pool(tmp_path: Path, redis: RedisServer) -> Iterator[PoolProcess]:
    """With many snapshots, over a Redis that rewrites its file often."""
    redis.stop()
    redis.settings["auto-aof-rewrite-min-size"] = "1mb"
    redis.start()
    process = PoolProcess(tmp_path, **{"train.groups_per_step": 8, "pool.journal_mb": 1, "pool.url": redis.url}).start()
    yield process
    process.kill()


async def test_sigkills_of_pool_and_redis_lose_nothing_and_double_nothing(
    busy_pool: PoolProcess, redis: RedisServer
) -> None:
    await chaos(busy_pool, [busy_pool, redis], kills=6, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_many_sigkills_of_pool_and_redis_lose_nothing(busy_pool: PoolProcess, redis: RedisServer) -> None:
    """RLCTL_CHAOS_KILLS=200 for the long one."""
    await chaos(busy_pool, [busy_pool, redis], kills=KILLS, seed=3)


async def test_requests_wait_for_a_redis_that_is_restarted(ask: Ask, redis: RedisServer) -> None:
    await ask.ask(SubmitSteps([step("t", 0)]))
    redis.kill()
    waiting = asyncio.create_task(ask.ask(SubmitSteps([step("t", 1)])))
    await asyncio.sleep(0.4)
    assert not waiting.done()
    assert await steps_stored(ask) == 1, "questions are answered meanwhile"
    redis.start()
    assert (await asyncio.wait_for(waiting, 10)).accepted == 1


async def test_a_redis_that_stays_away_is_a_clear_error_and_nothing_is_acknowledged(
    pool: PoolProcess, ask: Ask, redis: RedisServer
) -> None:
    await ask.ask(SubmitSteps([step("t", 0)]))
    redis.kill()
    began = time.monotonic()
    with pytest.raises(WireError, match=rf"acknowledges nothing: redis://127.0.0.1:{redis.port}/0 has not answered"):
        await ask.ask(SubmitSteps([step("t", 1)]))
    assert 0.9 < time.monotonic() - began < 4
    began = time.monotonic()
    with pytest.raises(WireError, match="acknowledges nothing"):
        await ask.ask(SubmitSteps([step("t", 1)]))
    assert time.monotonic() - began < 0.9, "it has been away long enough: the next ones do not wait as long again"
    assert await steps_stored(ask) == 1
    redis.start()
    assert (await ask.ask(SubmitSteps([step("t", 1)]))).accepted == 1
    redis.kill()
    began = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - began < 2


async def test_a_full_redis_is_a_clear_error_and_goes_on_when_it_has_room(
    pool: PoolProcess, ask: Ask, redis: RedisServer
) -> None:
    with client.Redis.from_url(redis.url) as admin:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 500_000)
        stored, refused = 0, ""
        for index in range(500):
            try:
                await ask.ask(SubmitSteps([step("t", index, tokens=500)]))
                stored += 1
            except WireError as error:
                refused = str(error)
                break
        assert "the pool stored nothing: redis://" in refused
        assert refused.endswith("(it is full: raise maxmemory)")
        assert 10 < stored < 200
        assert await steps_stored(ask) == stored, "memory is not ahead of Redis"
        pool.kill()
        pool.start()
        assert await steps_stored(ask) == stored
        admin.config_set("maxmemory", 0)
        assert (await ask.ask(SubmitSteps([step("t", stored, tokens=500)]))).accepted == 1


async def test_a_full_redis_is_emptied_by_a_snapshot_when_most_samples_have_ended(ask: Ask, redis: RedisServer) -> None:
    with client.Redis.from_url(redis.url) as admin:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 1_000_000)
        refused = 0
        for number in range(200):  # 8 kB each, and none stays: far below pool.journal_mb
            try:
                await ask.ask(SubmitSteps([step(f"t{number}", 0, tokens=1000)]))
                await ask.ask(CompleteTrajectory(f"t{number}", 1, status="failed"))
            except WireError as error:
                assert "it is full" in str(error)
                refused += 1
                await asyncio.sleep(0.1)
        assert 0 < refused < 10


async def test_a_redis_that_comes_back_without_its_data_ends_the_pool(
    pool: PoolProcess, ask: Ask, redis: RedisServer
) -> None:
    await ask.ask(SubmitSteps([step("t", 0)]))
    with client.Redis.from_url(redis.url) as admin:
        admin.flushall()
    assert pool.process
    assert await asyncio.to_thread(pool.process.wait, 10) == 1
    assert f"redis://127.0.0.1:{redis.port}/0 has lost acknowledged data of run" in pool.log


async def test_a_pool_elsewhere_takes_over_from_one_that_is_cut_off(tmp_path: Path, redis: RedisServer) -> None:
    """The first is stopped for longer than its lease; the second has the same run directory, as on a shared disk."""
    first = PoolProcess(tmp_path, **{"pool.url": redis.url, "pool.group_timeout_s": 3}).start()
    second = standby(first)
    ask, other = Ask(first.url), Ask(second.url)
    assert first.process
    try:
        await ask.ask(CompleteTrajectory("before", 0, status="failed"))
        await ask.ask(SubmitSteps([step("late", 0)]))  # both pools will see its deadline pass
        os.kill(first.process.pid, signal.SIGSTOP)
        await asyncio.to_thread(second.start)
        assert await steps_stored(other) == 1
        assert (await other.ask(SubmitSteps([step("t", 1)]))).accepted == 1
        os.kill(first.process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(first.process.wait, 10) == 1
        assert "another pool has taken over run" in first.log
        await other.ask(CompleteTrajectory("after", 0, status="failed"))
        assert second.stop() == 0
    finally:
        ask.close()
        other.close()
        first.kill()
        second.kill()
    ended = [one.trajectory.uid for _, one in read_ended(tmp_path / "trajectories")]
    assert ended[:2] == ["before", "late"]
    assert ended.count("late") == ended.count("after") == 1


async def test_clients_that_know_both_places_follow_the_pool(tmp_path: Path, pool: PoolProcess) -> None:
    second = standby(pool)
    waiting = await asyncio.to_thread(subprocess.Popen, second.argv, env=second.environment)
    ask, blocking = Ask(f"{pool.url},{second.url}", retry_s=90), AskBlocking(f"{second.url},{pool.url}", retry_s=90)
    try:
        for index in range(6):  # both ends of the list are served by the one that is there
            assert (await ask.ask(SubmitSteps([step("t", index)]))).accepted == 1
        assert (await asyncio.to_thread(blocking.ask, SubmitSteps([step("t", 0)]))).duplicate == 1
        pool.kill()
        await asyncio.sleep(2)  # what is sent before the loss is noticed is sent again after `retry_s` only
        began = time.monotonic()
        assert (await ask.ask(SubmitSteps([step("t", 6)]), 120)).accepted == 1
        assert time.monotonic() - began < 60, "the question went to the pool that is there, at once and once"
        assert (await asyncio.to_thread(blocking.ask, SubmitSteps([step("t", 6)]))).duplicate == 1
        assert await steps_stored(ask) == 7
    finally:
        ask.close()
        blocking.close()
        waiting.kill()
        waiting.wait()


async def test_with_several_places_and_nobody_there_the_question_ends_in_time(tmp_path: Path) -> None:
    url = f"tcp://127.0.0.1:{free_port()},tcp://127.0.0.1:{free_port()}"
    for ask in (Ask(url).ask, partial(asyncio.to_thread, AskBlocking(url).ask)):
        began = time.monotonic()
        with pytest.raises(WireError, match=r"no answer from .* to GetStatistics within 0\.5 s"):
            await ask(GetStatistics(), timeout_s=0.5)
        assert 0.4 < time.monotonic() - began < 2


def test_a_waiting_pool_ends_on_sigterm(tmp_path: Path, pool: PoolProcess) -> None:
    waiting = subprocess.Popen(pool.argv, stderr=subprocess.PIPE, text=True, env=pool.environment)
    assert waiting.stderr
    assert "this one waits to take over" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(2) == 0
    waiting.stderr.close()


@pytest.mark.parametrize("first", ["disk", "redis"])
def test_a_run_does_not_change_the_place_of_its_samples(tmp_path: Path, redis: RedisServer, first: str) -> None:
    places = {"disk": {}, "redis": {"pool.url": redis.url}}
    pool = PoolProcess(tmp_path, **places.pop(first)).start()

    async def one_sample() -> None:
        ask = Ask(pool.url)
        await ask.ask(SubmitSteps([step("t", 0)]))
        ask.close()

    asyncio.run(one_sample())
    pool.stop()
    (other,) = places.values()
    message = "samples of this run are on this disk" if first == "disk" else "samples of this run are in Redis, as run-"
    with pytest.raises(AssertionError, match=message):
        PoolProcess(tmp_path, **other).start()


async def test_a_new_run_in_the_same_place_finds_no_old_samples(tmp_path: Path, pool: PoolProcess, ask: Ask) -> None:
    await ask.ask(SubmitSteps([step("t", 0)]))
    pool.stop()
    (tmp_path / "pool" / "redis-run").unlink()  # the run directory was deleted and made anew
    pool.start()
    assert await steps_stored(ask) == 0


def test_a_password_is_neither_logged_nor_written(tmp_path: Path, redis: RedisServer) -> None:
    with client.Redis.from_url(redis.url) as admin:
        admin.config_set("requirepass", "s3cret")
    url = redis.url.replace("redis://", "redis://default:s3cret@")
    pool = PoolProcess(tmp_path, **{"pool.url": url}).start()
    pool.stop()
    for file in tmp_path.rglob("*"):
        if file.is_file() and "redis" not in file.relative_to(tmp_path).parts:
            assert b"s3cret" not in file.read_bytes(), file
    with pytest.raises(AssertionError, match=r"pool\.url: the password is not kept in resolved\.toml"):
        PoolProcess(tmp_path, **{"pool.url": url.replace("s3cret", "***")}).start()
