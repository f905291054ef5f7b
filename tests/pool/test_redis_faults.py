"""Random lost, late and repeated commands between the journal and a real Redis, beside a list of what was told."""

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis as client
from redis.exceptions import ConnectionError

from rlctl.pool.commits import encode_state
from rlctl.pool.storage import redis_journal
from rlctl.pool.storage.journal import record
from rlctl.pool.storage.redis_journal import RedisJournal
from rlctl.pool.storage.redis_link import Link
from rlctl.pool.storage.segments import StorageError, Unsure
from rlctl.pool.store import Store
from rlctl.wire.messages import CompleteTrajectory
from tests.pool.make import rules
from tests.pool.redis_server import RedisServer, needs_redis

pytestmark = needs_redis


class BadLine:
    """A client whose scripts are lost on the way, carried out without an answer, or carried out again much later."""

    def __init__(self, real: Any, rng: random.Random) -> None:
        self._real = real
        self._rng = rng
        self.faults = 0.4
        self.late: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def register_script(self, text: str) -> Callable[[list[str], tuple[Any, ...]], Any]:
        def command(keys: list[str], args: tuple[Any, ...]) -> Any:
            run = self._real.register_script(text)
            while self.late and self._rng.random() < 0.1:
                self.late.pop(self._rng.randrange(len(self.late)))()
            fate = self._rng.random()
            if fate < self.faults / 2:  # lost for now
                self.late.append(lambda: run(keys, args))
                raise ConnectionError("lost")
            done = run(keys, args)
            if fate < self.faults:
                raise ConnectionError("answer lost")
            return done

        return command


class Pool:
    """One life of a pool over a bad line: a store, its journal, and what it told its clients."""

    def __init__(self, url: str, run: str, rng: random.Random, told: list[str]) -> None:
        self.journal = RedisJournal(url, run, wait_s=5)
        self.told = told
        self.refused: list[list[str]] = []
        """Since the last commit that was stored; the newest of them that Redis has may come back."""
        asyncio.run(self.journal.own("tests"))
        self.journal._closing.set()  # nothing but the test speaks to Redis
        self.store: Store = self.journal.recover(rules())
        self.line = BadLine(self.journal._link._client, rng)
        self.journal._link._client = self.line

    def commit(self, uids: list[str]) -> None:
        events = [CompleteTrajectory(uid, 0, status="failed") for uid in uids]
        try:
            self.journal.append([record(event, 1.0) for event in events])
        except StorageError:
            self.refused.append(uids)
            return
        self.told += uids
        self.refused = []
        for event in events:
            self.store.apply(event, 1.0)

    def snapshot(self) -> None:
        try:
            self.journal.snapshot(encode_state(self.store.state), self.journal.cut())
        except StorageError:
            return


@pytest.mark.parametrize("seed", range(25))
def test_what_was_told_is_there_and_what_was_refused_is_not(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)

    def patience(self: Link, error: Exception, pause: float) -> None:
        if rng.random() < 0.3:
            raise Unsure(str(error))

    monkeypatch.setattr(Link, "_wait", patience)
    monkeypatch.setattr(redis_journal, "CHUNK", 150)
    run, told, number = uuid.uuid4().hex, [], 0
    for _ in range(4):
        pool = Pool(redis_server.url, run, rng, told)
        for _ in range(rng.randrange(25)):
            if rng.random() < 0.2:
                pool.snapshot()
            else:
                uids = [f"t{number + i}" for i in range(rng.randrange(1, 6))]
                number += len(uids)
                pool.commit(uids)
        assert set(pool.store.state.tombstones) == set(told)
        with client.Redis.from_url(redis_server.url) as elsewhere:  # it dies, and its lease runs out
            elsewhere.delete(pool.journal.keys["owner"])
        after = RedisJournal(redis_server.url, run, wait_s=5)
        asyncio.run(after.own("tests"))
        found = set(after.recover(rules()).state.tombstones)
        assert found in [set(told), *(set(told) | set(one) for one in pool.refused)], "all of a commit or nothing"
        for late in pool.line.late:  # still on their way when another pool has the run
            assert late() != b"OK"
        assert set(after.recover(rules()).state.tombstones) == found
        told += sorted(found - set(told))
        after.close()
