"""`rlctl eval` with an engine of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.running import left_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_an_untrained_model_is_measured_beside_floor_and_ceiling(tmp_path: Path) -> None:
    words = ["eval", "frozenlake-cpu", "--episodes", "8", "--samples", "2", "--out", str(tmp_path / "out"), "--json"]
    command = [sys.executable, "-m", "rlctl", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(done.stdout)["results"]
    assert (row["instances"], row["samples"], row["failed"]) == (8, 2, 0)
    assert 0 < row["floor"] < row["ceiling"] == 1.0
    assert len((tmp_path / "out" / "episodes.jsonl").read_text().splitlines()) == 16
    assert left_running(tmp_path / "out") == []
