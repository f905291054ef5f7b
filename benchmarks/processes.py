"""Child processes of benchmarks and tests."""

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
