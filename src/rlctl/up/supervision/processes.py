"""Starting and ending one child process: own session, own log file, no way to outlive the run."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from rlctl.config import Config
from rlctl.config.base import masked
from rlctl.up.planning.plan import ProcessSpec
from rlctl.up.supervision.leash import MARK

PR_SET_PDEATHSIG = 1


class Child(Protocol):
    """What the supervisor knows of a process it started."""

    pid: int
    log: Path

    def poll(self) -> int | None:
        """Exit code (negative: signal number), or None while it runs."""

    def signal(self, signum: int) -> None:
        """To the process and its group; nothing when it is gone."""

    def owns(self, pid: int) -> bool:
        """Whether `pid` is this process or a descendant of it."""

    def cpu_s(self) -> float:
        """CPU seconds spent so far by it and its descendants."""

    def tail(self, lines: int) -> list[str]:
        """Last lines of what it wrote since it was started."""


Launch = Callable[[ProcessSpec], Child]


class Launcher:
    """Starts processes that carry `mark`, with logs in the run directory.

    `secrets`: more environment by name of the process, which is neither shown nor written anywhere.
    """

    def __init__(self, run_dir: Path, mark: str, secrets: Mapping[str, dict[str, str]] = {}) -> None:
        self._logs = run_dir / "logs"
        self._mark = mark
        self._secrets = secrets
        self._logs.mkdir(parents=True, exist_ok=True)

    def __call__(self, spec: ProcessSpec) -> "Process":
        env = {name: value for name, value in os.environ.items() if not name.startswith("RLCTL__")}
        # setproctitle, which vLLM calls, would overwrite the memory that /proc shows as the environment: SPT_NOENV=1
        env |= {"PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", MARK: self._mark, **spec.env}
        env |= self._secrets.get(spec.name, {})
        return Process(spec.argv, env, self._logs / f"{spec.name}.log")


def secrets(config: Config) -> dict[str, dict[str, str]]:
    """What resolved.toml leaves out: the address of the pool's Redis with its password."""
    return {"pool": {"RLCTL__POOL__URL": config.pool.url}} if masked(config.pool.url) != config.pool.url else {}


class Process:
    """A real child process (see Child)."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str], log: Path) -> None:
        self.log = log
        self._cpu_s = 0.0
        with log.open("ab") as file:
            self._begin = file.tell()
            self._popen = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self.pid = self._popen.pid

    def poll(self) -> int | None:
        if self._popen.returncode is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)  # as Popen.poll, but it tells the CPU time too
            if pid:
                self._popen.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_s = max(self._cpu_s, usage.ru_utime + usage.ru_stime)
        return self._popen.returncode

    def signal(self, signum: int) -> None:
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):  # gone; macOS says EPERM for a group of zombies
            return

    def owns(self, pid: int) -> bool:
        try:
            return pid == self.pid or self.pid in (parent.pid for parent in psutil.Process(pid).parents())
        except psutil.NoSuchProcess:
            return False

    def cpu_s(self) -> float:
        try:
            process = psutil.Process(self.pid)
            own = process.cpu_times()
            total = own.user + own.system + own.children_user + own.children_system
            for descendant in process.children(recursive=True):
                times = descendant.cpu_times()
                total += times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return self._cpu_s
        self._cpu_s = max(self._cpu_s, total)
        return self._cpu_s

    def tail(self, lines: int) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self._begin)
            return last_lines(file.read().decode(errors="replace"), lines)


def last_lines(text: str, lines: int) -> list[str]:
    """Last lines of a log, without torchrun's closing words, which push the cause out of sight."""
    rows = text.rstrip().splitlines()
    for i, row in enumerate(rows):
        if i and "torch/distributed/elastic" in row and "failed (exitcode" in row:
            rows = rows[: i + 1]
            break
    return rows[-lines:]


def wait_all(children: list[Child], deadline: float, clock: Callable[[], float] = time.monotonic) -> list[Child]:
    """Children that still run at the deadline."""
    left = [child for child in children if child.poll() is None]
    while left and clock() < deadline:
        time.sleep(0.02)
        left = [child for child in left if child.poll() is None]
    return left


def exit_text(code: int) -> str:
    """7 -> "exit code 7"; -9 -> "signal 9 (SIGKILL)"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child, before exec: SIGTERM when `rlctl up` dies, in addition to the leash."""
    assert _libc is not None
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
