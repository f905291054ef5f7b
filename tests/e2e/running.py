"""Start `rlctl up` as a user does, and see what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

SMALL = (
    "run.steps=3",
    "sft.max_steps=0",
    "train.groups_per_step=4",
    "rollout.group_size=4",
    'eval=[{name="val", episodes=8}]',
)
"""The FrozenLake preset, cut down to seconds."""


def command(run_dir: Path, *args: str, settings: tuple[str, ...] = SMALL, preset: str = "frozenlake-cpu") -> list[str]:
    overrides = [part for setting in (f"run.dir={run_dir}", *settings) for part in ("-s", setting)]
    return [sys.executable, "-m", "rlctl", "up", preset, *overrides, *args]


started: list[subprocess.Popen[str]] = []
"""What `start` has started; `conftest` ends what a failed test leaves of it."""


def start(run_dir: Path, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(run_dir, *args, **kwargs),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    started.append(process)
    return process


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; interrupts the run when it takes too long."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"rlctl up took more than {timeout_s} s:\n{err[-3000:]}") from None
    return process.returncode, out, err


def left_running(run_dir: Path) -> list[str]:
    """Command lines of processes that belong to the run: they carry its directory in argv or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            belongs = any(str(run_dir) in word for word in words) or process.environ().get("RLCTL__RUN__DIR") == str(
                run_dir
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if belongs:
            found.append(" ".join(words)[:200])
    return found


def wait_for(condition: Any, timeout_s: float, what: str) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def rows(run_dir: Path, name: str) -> list[dict[str, Any]]:
    path = run_dir / "metrics" / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def pid_of(run_dir: Path, name: str) -> int:
    return int(json.loads((run_dir / "components" / f"{name}.json").read_text())["pid"])
