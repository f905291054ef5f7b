"""`rlctl top` on a real pool, and on a run that is dead."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import rlctl as rlctl_package
from rlctl.wire.live import Listener
from rlctl.wire.messages import Ack, CompleteTrajectory, FetchBatch, Hold, OpenGroup, SetPolicyVersion, SubmitSteps
from rlctl.wire.sockets import AskBlocking
from tests.cli.running import rlctl
from tests.pool.make import step
from tests.pool.process import PoolProcess


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolProcess]:
    (tmp_path / "resolved.toml").write_text('[model]\ninit = "tiny"\n')
    process = PoolProcess(tmp_path, **{"train.groups_per_step": 4}).start()
    yield process
    process.stop()


@pytest.fixture
def ask(pool: PoolProcess) -> Iterator[AskBlocking]:
    client = AskBlocking(pool.url)
    yield client
    client.close()


def play(ask: AskBlocking, name: str) -> None:
    ask.ask(OpenGroup(name, [name], env="lake"))
    ask.ask(SubmitSteps([step(name, version=2)]))
    ask.ask(CompleteTrajectory(name, 1, reward=0.5))


def test_one_look_has_groups_by_state_outcomes_versions_and_what_ended(pool: PoolProcess, ask: AskBlocking) -> None:
    ask.ask(SetPolicyVersion(2))
    for name in "abcd":
        play(ask, name)
    ask.ask(OpenGroup("e", ["e"]))
    for name in "abc":
        ask.ask(FetchBatch(1, lease=name))
    ask.ask(Ack("a", {"a": "trained"}))
    ask.ask(Hold("b", ["b"]))
    found = json.loads(rlctl("top", pool.directory, "--once", "--json", cwd=pool.directory).stdout)
    assert found["live"]
    assert found["groups"] == {"playing": 1, "ready": 1, "learning": 1, "held": 1}
    assert {name: n for name, n in found["outcomes"].items() if n} == {"created": 5, "open": 4, "trained": 1}
    assert found["pool"]["policy_version"] == 2
    shown = rlctl("top", pool.directory, "--once", cwd=pool.directory).stdout
    for text in ("playing", "held", "trained", "pool", "ready", "in flight"):
        assert text in shown


def test_a_listener_hears_every_ending_and_numbers_that_grow(pool: PoolProcess, ask: AskBlocking) -> None:
    listener = Listener(pool.url)
    before = listener.listen(5.0)
    assert before, "the pool speaks without being asked"
    play(ask, "a")
    ask.ask(FetchBatch(1, lease="a"))
    ask.ask(Ack("a", {"a": "trained"}))
    heard = []
    for _ in range(10):
        heard += listener.listen(1.0)
        if any(one.ended for one in heard):
            break
    listener.close()
    (ended,) = [one for live in heard for one in live.ended]
    assert (ended.uid, ended.env, ended.outcome, ended.reward) == ("a", "lake", "trained", 0.5)
    assert (ended.steps, ended.tokens, ended.versions) == (1, 3, [2])
    assert (before[0].values["train.trained"], heard[-1].values["train.trained"]) == (0, 1)


def test_a_dead_run_is_shown_as_it_was(pool: PoolProcess, ask: AskBlocking) -> None:
    play(ask, "a")
    pool.stop()
    found = json.loads(rlctl("top", pool.directory, "--once", "--json", cwd=pool.directory).stdout)
    assert (found["live"], found["outcomes"]["created"], found["rates"]) == (False, 1, {"pool": {}})
    assert "not running" in rlctl("top", pool.directory, "--once", cwd=pool.directory).stdout


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    done = rlctl("top", tmp_path, "--once", cwd=tmp_path)
    assert (done.returncode, "no run directory" in done.stderr) == (2, True)


def test_on_a_terminal_it_is_drawn_again_until_ctrl_c(pool: PoolProcess, ask: AskBlocking) -> None:
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "rlctl", "top", str(pool.directory)]
    environment = {**os.environ, "PYTHONPATH": str(Path(rlctl_package.__file__).parents[1]), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    screen, deadline = b"", time.monotonic() + 30
    while screen.count(b"in flight") < 2 and time.monotonic() < deadline:
        screen += os.read(leader, 65536)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        if select.select([leader], [], [], 0.1)[0]:
            with suppress(OSError):  # EIO: it has gone
                os.read(leader, 65536)
    os.close(leader)
    assert screen.count(b"in flight") >= 2
    assert process.returncode == 130
