"""A store; both places where a pool keeps its journal: the local disk, and a real Redis."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlctl.pool.storage.journal import Durable, Journal
from rlctl.pool.storage.redis_journal import RedisJournal
from rlctl.pool.store import Store
from tests.pool.make import rules
from tests.pool.redis_server import RedisServer, needs_redis

BOTH = ["disk", pytest.param("redis", marks=needs_redis)]
Open = Callable[[], Durable]


@pytest.fixture
def store() -> Store:
    return Store(rules())


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests that leave it as it is."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One to be ill-treated."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()


@pytest.fixture(params=BOTH)
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of a pool, for each place."""
    return {} if request.param == "disk" else {"pool.url": request.getfixturevalue("redis_server").url}


@pytest.fixture
def open_journal(where: dict[str, str], tmp_path: Path) -> Iterator[Open]:
    """Opens the same journal every time; the one before must be closed."""
    opened: list[Durable] = []
    run = uuid.uuid4().hex

    def again() -> Durable:
        if where:
            journal = RedisJournal(where["pool.url"], run, wait_s=5)
            asyncio.run(asyncio.wait_for(journal.own("tests"), 10))
            opened.append(journal)
        else:
            opened.append(Journal(tmp_path / "pool"))
        return opened[-1]

    yield again
    for journal in opened:
        if isinstance(journal, RedisJournal):
            journal.close()
