"""The supervisor with real processes: `driver.py` runs `rlctl.up.run.start` on components made for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

DRIVER = str(Path(__file__).with_name("driver.py"))


class Run:
    """One `rlctl up` in a process of its own."""

    def __init__(self, run_dir: Path, *described: str) -> None:
        self.dir = run_dir
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, str(run_dir), *described],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=40)
        return self.process.returncode, out, err

    def pid(self, name: str) -> int:
        path = self.dir / "components" / f"{name}.json"
        wait_for(path.exists)
        return int(json.loads(path.read_text())["pid"])

    def processes(self) -> list[psutil.Process]:
        """Living processes that were given this run's directory, and their children in sessions of their own."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if str(self.dir) in words and DRIVER not in words and process.info["status"] != psutil.STATUS_ZOMBIE:
                found += [process, *process.children(recursive=True)]
        return found


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*described: str) -> Run:
        started.append(Run(tmp_path / "run", *described))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


def test_processes_start_in_order_of_readiness_and_the_trainers_end_is_the_runs_end(up: Callable[..., Run]) -> None:
    run = up(
        "prepare=exit:0:0.2",
        "pool=serve",
        "engine-0=serve@prepare",
        "gateway=serve@pool+engine-0",
        "sft=exit:0:0.2@gateway",
        "train=exit:0:0.3@gateway+sft",
    )
    code, out, err = run.end()
    assert code == 0, err
    order = (run.dir / "order.txt").read_text().split()
    assert set(order[:2]) == {"prepare", "pool"}
    assert order[2:] == ["engine-0", "gateway", "sft", "train"]
    summary = json.loads(out)
    assert summary == json.loads((run.dir / "summary.json").read_text())
    assert summary["status"] == "ok"
    assert set(summary["phases"]) == {"prepare", "pool", "engine", "gateway", "sft", "trainer"}
    assert all(phase["cpu_s"] > 0.01 for phase in summary["phases"].values())
    assert gone(run.processes())


@pytest.mark.parametrize("victim", ["engine-0", "train"])
def test_a_killed_component_ends_the_run_with_exit_3_within_10_s(up: Callable[..., Run], victim: str) -> None:
    run = up("pool=stubborn", "engine-0=family", "gateway=serve@pool+engine-0", "train=serve@gateway")
    target = run.pid(victim)
    run.pid("train")
    everything = run.processes()
    assert len(everything) >= 5
    killed = time.monotonic()
    os.kill(target, signal.SIGKILL)
    code, _, err = run.end()
    assert code == 3
    assert time.monotonic() - killed < 10
    assert f"error: {victim} died with signal 9 (SIGKILL)" in err
    assert f"{victim} starts" in err  # the end of its log
    assert gone(everything)
    summary = json.loads((run.dir / "summary.json").read_text())
    assert summary["status"] == "component_died"
    assert victim in summary["error"]


def test_a_component_that_ends_by_itself_with_0_is_dead_too(up: Callable[..., Run]) -> None:
    code, _, err = up("pool=exit:0:0.1", "train=serve@pool").end()
    assert code == 3
    assert "pool died with exit code 0" in err


def test_a_failing_preparation_starts_nothing_else(up: Callable[..., Run]) -> None:
    run = up("prepare=exit:7:0", "engine-0=serve@prepare", "train=serve@engine-0")
    code, _, err = run.end()
    assert code == 3
    assert "prepare died with exit code 7" in err
    assert (run.dir / "order.txt").read_text().split() == ["prepare"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_everything_with_exit_130(up: Callable[..., Run], signum: int) -> None:
    run = up("pool=serve", "engine-0=family", "train=serve@pool+engine-0")
    run.pid("train")
    everything = run.processes()
    run.process.send_signal(signum)
    code, _, _ = run.end()
    assert code == 130
    assert gone(everything)
    assert json.loads((run.dir / "summary.json").read_text())["status"] == "interrupted"
    states = {path.stem: json.loads(path.read_text())["state"] for path in (run.dir / "components").glob("*.json")}
    assert states == {"pool": "ended", "engine-0": "ended", "train": "ended"}


def test_sigkill_of_rlctl_up_itself_leaves_nothing_behind(up: Callable[..., Run]) -> None:
    run = up("pool=stubborn", "engine-0=family", "train=serve@pool+engine-0")
    run.pid("train")
    everything = [*run.processes(), *psutil.Process(run.process.pid).children()]
    assert len(everything) >= 5
    run.process.kill()
    run.process.communicate()
    wait_for(lambda: gone(everything), seconds=10)


def test_a_component_that_never_gets_ready_is_named(up: Callable[..., Run]) -> None:
    code, _, err = up("pool=silent", "train=serve@pool", "--", "engine.start_timeout_s=1").end()
    assert code == 3
    assert "pool was not ready within 1 s" in err


def test_no_training_step_for_too_long_is_exit_4(up: Callable[..., Run]) -> None:
    run = up("pool=serve", "train=serve@pool", "--", "monitor.watchdog_s=1")
    code, _, err = run.end()
    assert code == 4
    assert "no training step for 1 s" in err
    assert json.loads((run.dir / "summary.json").read_text())["status"] == "watchdog"


def test_a_trainer_that_ends_itself_for_want_of_progress_is_exit_4(up: Callable[..., Run]) -> None:
    run = up("pool=serve", "train=exit:4:1@pool")
    code, _, err = run.end()
    assert code == 4
    assert "train made no progress" in err and "logs/train.log" in err
    assert json.loads((run.dir / "summary.json").read_text())["status"] == "watchdog"


def test_without_a_terminal_progress_is_plain_lines(up: Callable[..., Run]) -> None:
    code, out, err = up("pool=serve", "train=exit:0:1@pool", "--", "monitor.print_every_s=0.2").end()
    assert code == 0
    assert "train step 0/100" in err
    assert "\x1b[" not in err
    assert len(out.splitlines()) == 1  # stdout has the summary and nothing else


def test_variables_of_the_caller_do_not_override_the_resolved_configuration(
    up: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCTL__RUN__STEPS", "5")
    run = up("pool=serve", "train=serve@pool")
    environment = psutil.Process(run.pid("pool")).environ()
    run.process.send_signal(signal.SIGINT)
    run.end()
    assert "RLCTL__RUN__STEPS" not in environment
