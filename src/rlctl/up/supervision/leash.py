"""Keeps processes from outliving the run, however it ends.

Every process of a run carries a mark in its environment, which its own children inherit whatever session or process
group they make for themselves (torchrun's workers and vLLM's do). `python -m rlctl.up.supervision.leash MARK` is a
small process that holds one end of a pipe; the other end is `rlctl up`'s. End of file means that `rlctl up` is gone,
also by SIGKILL: whatever still carries the mark gets SIGTERM, and after GRACE_S seconds SIGKILL.
"""

import os
import signal
import sys
import time

import psutil

MARK = "RLCTL_RUN_MARK"
GRACE_S = 2.0


def marked(mark: str) -> list[psutil.Process]:
    """Living processes of this user that carry the mark (not this one)."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone meanwhile, a zombie, or not ours
            continue
    return found


def sweep(mark: str, grace_s: float = GRACE_S) -> int:
    """End every marked process; returns how many there were."""
    first = marked(mark)
    left = first
    for process in left:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = marked(mark)
    while left:
        for process in left:
            _signal(process, signal.SIGKILL)
        time.sleep(0.05)
        left = marked(mark)
    return len(first)


def _signal(process: psutil.Process, signum: int) -> None:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        return


def main(mark: str) -> None:
    """Wait for the end of the pipe on stdin, then sweep. Signals to the terminal's group do not end it."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    sweep(mark)


if __name__ == "__main__":
    main(sys.argv[1])
