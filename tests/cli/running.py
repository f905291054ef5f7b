"""Run the real command line in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def python(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """This interpreter on this source tree, in `cwd`, without RLCTL__ variables and without the hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLCTL__")}
    source = str(Path(__file__).parents[2] / "src")
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": source, "COLUMNS": "120"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def rlctl(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`rlctl ARGUMENTS` in `cwd`."""
    return python("-m", "rlctl", *arguments, cwd=cwd)
