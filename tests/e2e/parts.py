"""Single components as real processes, from one preset: for tests that want a few of them, not a whole run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import end

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def preset(folder: Path, sections: dict[str, dict[str, Any]]) -> Path:
    """A preset file of these sections."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = folder / "preset.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def launch(command: str, config: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`rlctl COMMAND --config CONFIG`; its output goes to `log`."""
    with log.open("ab") as output:
        argv = [sys.executable, "-m", "rlctl", command, "--config", str(config), *arguments]
        return subprocess.Popen(argv, stdout=output, stderr=output, env=ENVIRONMENT)


def announced(run_dir: Path, name: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 60) -> str:
    """Where the component serves, once it does; AssertionError with its last words when it ends before."""
    file = run_dir / "components" / f"{name}.json"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if file.exists() and (said := json.loads(file.read_text()))["pid"] == process.pid:
            return str(said["url"])
        assert process.poll() is None, f"{name} ended:\n{log.read_text()[-3000:]}"
        time.sleep(0.05)
    raise AssertionError(f"{name} did not start within {timeout_s} s:\n{log.read_text()[-3000:]}")


@contextmanager
def component(
    command: str, name: str, run_dir: Path, sections: dict[str, dict[str, Any]], timeout_s: float = 60
) -> Iterator[str]:
    """A component's address, as long as the block runs; ended with SIGTERM, and it must end well."""
    config = preset(run_dir / f"{name}-preset", {"run": {"dir": str(run_dir)}, **sections})
    log = run_dir / f"{name}.log"
    process = launch(command, config, log)
    try:
        yield announced(run_dir, name, process, log, timeout_s)
        assert process.poll() is None, f"{name} ended by itself:\n{log.read_text()[-3000:]}"
    finally:
        end(process)
    assert process.returncode == 0, f"{name} ended with {process.returncode}:\n{log.read_text()[-3000:]}"
