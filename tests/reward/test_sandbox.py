"""Whatever a function does, it is an outcome with a name, and the next call is as good as the first."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlctl.errors import ConfigError
from rlctl.reward.functions import Sample
from rlctl.sandbox import confine
from rlctl.sandbox.client import Sandbox
from rlctl.sandbox.protocol import Limits, Result

MODULE = "tests.reward.misbehaved"
STRUCT = "rlctl.reward.functions:Sample"
SAMPLE = Sample(["four", "five5"])
LIMITS = Limits(time_s=20.0, memory_mb=200, file_mb=2)
SHORT = Limits(time_s=0.5, memory_mb=200)
ENDLESS = ("sleeps_forever", "spins")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox([f"{MODULE}:fine", STRUCT], workers=2)
    yield made
    made.close()


def run(sandbox: Sandbox, name: str, **keywords: str) -> Result:
    result = sandbox.call(
        f"{MODULE}:{name}", SAMPLE, limits=SHORT if name in ENDLESS else LIMITS, argument=STRUCT, **keywords
    )
    again = sandbox.call(f"{MODULE}:fine", SAMPLE, limits=LIMITS, argument=STRUCT)
    assert again == Result("value", 5.0), "the next call is not touched"
    return result


def children() -> int:
    return len(psutil.Process().children(recursive=True))


def test_values_come_back(sandbox: Sandbox) -> None:
    assert run(sandbox, "fine").value == 5.0
    assert run(sandbox, "per_step").value == [4.0, 5.0]


@pytest.mark.parametrize(
    ("name", "outcome", "text"),
    [
        ("raises", "raised", "RuntimeError: boom"),
        ("leaves", "raised", "SystemExit: 1"),
        ("takes_nothing", "raised", "TypeError"),
        ("returns_text", "value", ""),
        ("returns_nothing", "wrong_type", "returned NoneType, not a number"),
        ("returns_a_lot", "wrong_type", "more than 1048576 bytes"),
        ("sleeps_forever", "timeout", "ran longer than 0.5 s"),
        ("spins", "timeout", "longer than 0.5 s"),
        ("allocates_50_gb", "memory", "used more than 200 MB"),
        ("allocates_little_by_little", "memory", "used more than 200 MB"),
        ("segfaults", "crash", "died of SIGSEGV"),
        ("exits_silently", "crash", "exited with code 0 without a result"),
        ("writes_a_huge_file", "raised", "File too large"),
        ("prints_a_lot", "value", ""),
        ("starts_a_thread", "value", ""),
        ("writes_in_its_folder", "value", ""),
    ],
)
def test_every_end_has_its_name(sandbox: Sandbox, name: str, outcome: str, text: str) -> None:
    result = run(sandbox, name)
    assert (result.outcome, text in result.text) == (outcome, True), result


needs_seccomp = pytest.mark.skipif("seccomp" not in confine.available(), reason="no seccomp here")
needs_landlock = pytest.mark.skipif("landlock" not in confine.available(), reason="no Landlock here")


@needs_seccomp
@pytest.mark.parametrize("name", ["fork_bomb", "starts_a_program", "kills_its_parent", "raises_its_limits"])
def test_processes_signals_and_limits_are_out_of_reach(sandbox: Sandbox, name: str) -> None:
    before = children()
    result = run(sandbox, name)
    assert result.outcome == "raised"
    assert "PermissionError" in result.text or "not allowed" in result.text
    assert children() <= before + 1


@needs_seccomp
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX"])
def test_there_is_no_network(sandbox: Sandbox, family: str) -> None:
    result = run(sandbox, "opens_a_socket", family=family)
    assert (result.outcome, "PermissionError" in result.text) == ("raised", True)


@needs_landlock
@pytest.mark.parametrize("name", ["writes_to", "deletes"])
def test_files_outside_its_folder_stay_as_they_are(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    result = run(sandbox, name, path=str(tmp_path / "precious"))
    assert (result.outcome, "PermissionError" in result.text) == ("raised", True)
    assert (tmp_path / "precious").read_text() == "kept"
    assert run(sandbox, "writes_to", path=str(tmp_path / "new")).outcome == "raised"
    assert not (tmp_path / "new").exists()


@needs_seccomp
def test_modes_of_files_stay_as_they_are(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    (tmp_path / "f").chmod(0o600)
    assert run(sandbox, "changes_mode", path=str(tmp_path / "f")).outcome == "raised"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600


def test_its_folder_is_gone_afterwards(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    own = Sandbox([f"{MODULE}:fine", STRUCT], workers=1)
    try:
        run(own, "writes_in_its_folder")
        run(own, "sleeps_forever")
        assert list(tmp_path.iterdir()) == []
    finally:
        own.close()


def test_a_keeper_that_was_killed_is_replaced() -> None:
    own = Sandbox([f"{MODULE}:fine", STRUCT], workers=1)
    try:
        (keeper,) = psutil.Process().children()[-1:]
        keeper.kill()
        keeper.wait()
        first = own.call(f"{MODULE}:fine", SAMPLE, limits=LIMITS, argument=STRUCT)
        assert first.outcome == "crash"
        assert own.call(f"{MODULE}:fine", SAMPLE, limits=LIMITS, argument=STRUCT).value == 5.0
    finally:
        own.close()


def test_nothing_is_left_running_after_the_owner_has_gone() -> None:
    reading, writing = os.pipe()
    owner = os.fork()
    if not owner:
        own = Sandbox([f"{MODULE}:fine", STRUCT], workers=1)
        os.write(writing, str(psutil.Process().children()[0].pid).encode())
        own.call(f"{MODULE}:sleeps_forever", SAMPLE, limits=Limits(time_s=60), argument=STRUCT)
        os._exit(0)
    keeper = psutil.Process(int(os.read(reading, 20)))
    deadline = time.monotonic() + 10
    while not (asleep := keeper.children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(owner, 9)
    os.waitpid(owner, 0)
    _, alive = psutil.wait_procs([keeper, *asleep], timeout=5)
    assert not alive


@pytest.mark.parametrize(("target", "reason"), [("nowhere:f", "No module named"), ("math:pi", "is float")])
def test_a_target_that_is_not_there_is_told_at_the_start(target: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Sandbox([target])
