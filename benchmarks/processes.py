"""Child processes of benchmarks and tests."""

import os
import signal
import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], patience_s: float = 20) -> None:
    """Ask a process to end (SIGTERM), and make it (SIGKILL) when it has not after `patience_s`."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_group(process: subprocess.Popen[Any], patience_s: float = 20) -> None:
    """As `end`, with all that the process has started (it leads a session of its own)."""
    end(process, patience_s)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
