"""The journal in Redis, beyond what `test_journal` shows for both: lost answers, owners, damage, fit servers."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as client

from rlctl.errors import ConfigError, RlctlError
from rlctl.pool.commits import encode_state
from rlctl.pool.storage import redis_journal, redis_link
from rlctl.pool.storage.journal import record
from rlctl.pool.storage.redis_journal import RedisJournal
from rlctl.pool.storage.segments import StorageError, Unsure
from rlctl.pool.store import Store
from rlctl.wire.frames import Record
from rlctl.wire.messages import CompleteTrajectory
from rlctl.wire.ports import free_port
from tests.pool.make import rules
from tests.pool.redis_server import RedisServer, needs_redis

pytestmark = needs_redis


def event(number: int) -> Record:
    return record(CompleteTrajectory(f"t{number}", 0, status="failed"), float(number))


def failed(store: Store) -> list[str]:
    return sorted(one.trajectory.uid for one in store.take_ended())


def opened(server: RedisServer, run: str, wait_s: float = 5, durable: bool = True) -> RedisJournal:
    journal = RedisJournal(server.url, run, wait_s, durable)
    asyncio.run(asyncio.wait_for(journal.own("tests"), 10))
    journal.recover(rules())
    return journal


def recovered(server: RedisServer, run: str) -> list[str]:
    """Uids that a pool elsewhere would find."""
    journal = opened(server, run)
    try:
        return failed(journal.recover(rules()))
    finally:
        journal.close()


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def journal(redis: RedisServer, run: str) -> Iterator[RedisJournal]:
    journal = opened(redis, run)
    yield journal
    journal.close()


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("not within 10 s")


# ---------------------------------------------------------------- lost answers


def test_a_commit_whose_answer_was_lost_is_sent_again_and_kept_once(
    redis: RedisServer, run: str, journal: RedisJournal
) -> None:
    journal.append([event(1)])
    append, calls = journal._link.call, 0

    def answer_lost(do):  # the first answer never arrives: the command was carried out
        nonlocal calls
        calls += 1
        done = append(do)
        return append(do) if calls == 1 else done

    journal._link.call = answer_lost
    journal.append([event(2), event(3)])
    journal.close()
    assert recovered(redis, run) == ["t1", "t2", "t3"]


def test_a_refused_commit_that_redis_carried_out_later_is_gone_after_the_next_one(
    redis: RedisServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "ANSWER_S", 0.2)
    journal = opened(redis, run, wait_s=0.3)
    journal.append([event(1)])
    redis.pause()
    with pytest.raises(Unsure, match=r"has not answered for \d s"):
        journal.append([event(2)])
    redis.resume()
    with client.Redis.from_url(redis.url) as look:
        assert look.xlen(journal.keys["journal"]) == 2, "it was carried out after all"
        journal.append([event(3)])
        assert look.xlen(journal.keys["journal"]) == 2, "and deleted"
    journal.close()
    assert recovered(redis, run) == ["t1", "t3"]


def test_a_command_that_arrives_after_its_time_does_nothing(
    redis: RedisServer, run: str, journal: RedisJournal
) -> None:
    late: list = []
    call = journal._link.call
    journal._link.call = lambda do: (late.append(do), call(do))[1]
    journal.append([event(1)])
    state = encode_state(journal.recover(rules()).state)
    journal.snapshot(state, journal.cut())
    journal.append([event(2)])
    journal.snapshot(encode_state(journal.recover(rules()).state), journal.cut())
    journal.append([event(3)])
    before = recovered_state(redis, run, journal)
    for command in list(late):
        call(command)
    assert recovered_state(redis, run, journal) == before


def recovered_state(redis: RedisServer, run: str, journal: RedisJournal) -> bytes:
    return encode_state(journal.recover(rules()).state)


# ---------------------------------------------------------------- owners


def test_a_second_pool_waits_until_the_first_lets_go(redis: RedisServer, run: str, journal: RedisJournal) -> None:
    async def takes_over() -> None:
        second = RedisJournal(redis.url, run, wait_s=5)
        waiting = asyncio.create_task(second.own("second"))
        await asyncio.sleep(1.2)
        assert not waiting.done()
        journal.close()
        await asyncio.wait_for(waiting, 3)
        second.close()

    asyncio.run(takes_over())


def test_who_was_replaced_cannot_write_and_says_so(
    redis: RedisServer, run: str, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append([event(1)])
    with client.Redis.from_url(redis.url) as elsewhere:
        elsewhere.delete(journal.keys["owner"])  # as if the lease had run out while its host was cut off
        second = opened(redis, run)
        for write in (lambda: journal.append([event(2)]), lambda: journal.snapshot(b"state", journal.cut())):
            with pytest.raises(RlctlError, match="another pool has taken over") as caught:
                write()
            assert not isinstance(caught.value, StorageError), "the pool must end, not go on"
        journal.confirm()  # its lease has time left: nobody else can have written yet
        monkeypatch.setattr(journal, "_renewed", 0.0)
        with pytest.raises(RlctlError, match="another pool has taken over"):
            journal.confirm()
        with pytest.raises(RlctlError, match="another pool has taken over"):
            asyncio.run(asyncio.wait_for(journal.keep(), 5))
        journal.close()
        assert elsewhere.exists(journal.keys["owner"]), "it does not give away what is not its own"
    second.append([event(3)])
    second.close()
    assert recovered(redis, run) == ["t1", "t3"]


def test_a_lease_is_renewed_while_nothing_is_written(
    redis: RedisServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_journal, "LEASE_S", 0.4)
    journal = opened(redis, run)
    with client.Redis.from_url(redis.url) as look:
        for _ in range(10):
            assert look.exists(journal.keys["owner"])
            asyncio.run(asyncio.sleep(0.1))
    journal.close()


def test_an_owner_that_died_on_this_host_is_replaced_at_once(redis: RedisServer, run: str) -> None:
    code = (
        "import asyncio, os, sys; from rlctl.pool.storage.redis_journal import RedisJournal;"
        "asyncio.run(RedisJournal(sys.argv[1], sys.argv[2], 5).own('x')); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(redis_journal.__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code, redis.url, run], env=environment, check=False, timeout=60)
    with client.Redis.from_url(redis.url) as look:
        assert look.pttl(f"rlctl:{{{run}}}:owner") > 1000
        journal = RedisJournal(redis.url, run, wait_s=5)
        asyncio.run(asyncio.wait_for(journal.own("next"), 0.5))
        assert json.loads(look.get(journal.keys["owner"]))["address"] == "next"
    journal.close()


# ---------------------------------------------------------------- what is stored


def test_a_large_commit_is_one_commit_in_several_entries(
    redis: RedisServer, run: str, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_journal, "CHUNK", 2 * len(b"".join(event(1))))
    monkeypatch.setattr(redis_journal, "PAGE", 2)
    journal.append([event(n) for n in range(1, 10)])
    journal.append([event(0)])
    with client.Redis.from_url(redis.url) as look:
        assert look.xlen(journal.keys["journal"]) == 6
    store = journal.recover(rules())
    assert failed(store) == [f"t{n}" for n in range(10)]
    journal.snapshot(encode_state(store.state), journal.cut())
    assert journal.recover(rules()).state == store.state, "the snapshot was cut in pieces, too"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda look, key: look.xdel(key, "2-0"), "no commit 2"),
        (lambda look, key: look.xdel(key, "3-0"), "commits 3 to 3 gone"),
        (
            lambda look, key: (
                look.xdel(key, "3-0"),
                look.xadd(key, {"after": 2, "frames": b"".join(event(3))[:-1]}, "3-1"),
            ),
            "dam",
        ),
    ],
)
def test_a_missing_or_damaged_entry_is_an_error_that_names_it(
    redis: RedisServer, journal: RedisJournal, damage, message: str
) -> None:
    for number in (1, 2, 3):
        journal.append([event(number)])
    with client.Redis.from_url(redis.url) as look:
        damage(look, journal.keys["journal"])
    with pytest.raises(StorageError, match=message):
        journal.recover(rules())


def test_a_redis_that_forgot_what_it_acknowledged_ends_the_pool(redis: RedisServer, journal: RedisJournal) -> None:
    journal.append([event(1)])
    with client.Redis.from_url(redis.url) as look:
        look.delete(journal.keys["head"])
        with pytest.raises(RlctlError, match="has lost acknowledged data") as caught:
            journal.append([event(2)])
        assert not isinstance(caught.value, StorageError)
        look.flushall()
        with pytest.raises(RlctlError, match="has lost acknowledged data"):
            journal.append([event(3)])


def test_all_keys_of_a_run_lie_on_one_node_of_a_cluster(tmp_path: Path, run: str) -> None:
    bus = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = RedisServer(tmp_path / "cluster", **bus).start()
    try:
        with client.Redis(port=server.port) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            wait_for(lambda: admin.cluster("INFO")["cluster_state"] == "ok")
        journal = opened(RedisServerAt(server), run, wait_s=10)
        journal.append([event(1)])
        journal.snapshot(encode_state(journal.recover(rules()).state), journal.cut())
        journal.append([event(2)])
        journal.close()
        again = opened(RedisServerAt(server), run)
        assert set(again.recover(rules()).state.tombstones) == {"t1", "t2"}
        again.close()
    finally:
        server.stop()


class RedisServerAt:
    """The server's address without a database: a cluster has only one."""

    def __init__(self, server: RedisServer) -> None:
        self.url = f"redis://127.0.0.1:{server.port}"


# ---------------------------------------------------------------- what a server must be


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"appendonly": "no"}, r"\(appendonly no\).*pool.fsync = false"),
        ({"appendfsync": "everysec"}, r"\(appendfsync everysec\): start it with --appendonly yes --appendfsync always"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, "would evict the pool's samples.*noeviction"),
    ],
)
def test_a_server_that_may_lose_samples_is_refused(
    tmp_path: Path, settings: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, **settings).start()
    try:
        with pytest.raises(ConfigError, match=message):
            RedisJournal(server.url, "run", wait_s=5)
        if "maxmemory" not in settings:
            with caplog.at_level(logging.WARNING):
                RedisJournal(server.url, "run", wait_s=5, durable=False).close()
            assert "a crash of Redis loses acknowledged samples" in caplog.text
    finally:
        server.stop()


def test_a_server_that_does_not_show_its_settings_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path, user="default on nopass ~* &* +@all -config").start()
    try:
        with caplog.at_level(logging.WARNING):
            RedisJournal(server.url, "run", wait_s=5).close()
        assert "whether it keeps what it acknowledges could not be checked" in caplog.text
    finally:
        server.stop()


@pytest.mark.parametrize("rest", ["0?bogus=1", "0?max_connections=many"])
def test_an_option_the_client_does_not_know_is_named(redis_server: RedisServer, rest: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"pool\.url = redis://127\.0\.0\.1:{redis_server.port}/0: .*(bogus|max_conn)"
    ):
        RedisJournal(f"redis://127.0.0.1:{redis_server.port}/{rest}", "run", wait_s=1)


def test_a_wrong_password_is_told_at_once_and_never_shown(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, requirepass="s3cret").start()
    try:
        address = f"127.0.0.1:{server.port}/0"
        RedisJournal(f"redis://:s3cret@{address}", "run", wait_s=30).close()
        for url in (f"redis://{address}", f"redis://default:wr0ng@{address}"):
            with pytest.raises(ConfigError) as caught:
                RedisJournal(url, "run", wait_s=30)
            assert str(caught.value).startswith(f"redis://{address}: ")
            assert "wr0ng" not in str(caught.value)
    finally:
        server.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine to make a certificate with")
def test_an_encrypted_connection_checks_the_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    argv = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*argv.split(), *files], check=True, capture_output=True)
    tls = {"tls-cert-file": str(certificate), "tls-key-file": str(key), "tls-auth-clients": "no"}
    server = RedisServer(tmp_path / "redis", tls=True, **tls).start()
    try:
        url = server.url.replace("redis://", "rediss://")
        journal = RedisJournal(f"{url}?ssl_ca_certs={certificate}", "run", wait_s=5)
        assert journal.where == url
        journal.close()
        with pytest.raises(StorageError, match="certificate"):
            RedisJournal(url, "run", wait_s=0.1)
    finally:
        server.stop()
