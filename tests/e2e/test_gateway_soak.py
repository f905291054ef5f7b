"""The soak script for half a minute: engines killed and replaced, the pool killed and away for ten seconds."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl.wire import frames
from rlctl.wire.arrays import pack_ids
from rlctl.wire.samples import Ended, Step, Trajectory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def soaked(out: Path, *words: str) -> dict[str, Any]:
    argv = [sys.executable, str(BENCHMARKS / "gateway_soak.py"), "--out", str(out), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCHMARKS.parent / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_half_a_minute_with_engines_dying_loses_and_doubles_nothing(tmp_path: Path) -> None:
    words = ("--minutes", "0.5", "--sessions", "50", "--think-s", "0.3", "--kill-every-s", "3")
    result = soaked(tmp_path / "result.json", *words)
    assert result["answers"] > 500 and result["trajectories"] > 100 and result["engines_killed"] >= 2
    assert [result[name] for name in ("lost", "lost_trajectories", "wrong", "doubled")] == [0, 0, 0, 0]
    assert result["memory"]["gateway"]["mb_per_minute"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pool_killed_under_load_and_away_for_ten_seconds_has_every_acknowledged_step_once(tmp_path: Path) -> None:
    words = ("--minutes", "0.2", "--sessions", "60", "--think-s", "0.1", "--kill-every-s", "1000")
    result = soaked(tmp_path / "result.json", *words, "--pool-down-s", "10")
    assert result["answers"] > 500 and result["engines_killed"] == 0
    assert [result[name] for name in ("lost", "lost_trajectories", "wrong", "doubled")] == [0, 0, 0, 0]


@pytest.fixture
def script() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import gateway_soak

        yield gateway_soak
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_accounts_see_what_is_lost_doubled_and_wrong(tmp_path: Path, script: Any) -> None:
    def step(index: int, *ids: int, reason: str = "") -> Step:
        return Step("t1", index, b"", pack_ids(ids), b"", [], fork_reason=reason)

    class Words:
        def decode(self, ids: list[int]) -> str:
            return " ".join(map(str, ids))

    held = [step(0, 5, 6), step(1, 7, 9), step(1, 7, 9), step(2, 8), step(3, 1, 2), step(4, reason="failed")]
    (tmp_path / "trajectories").mkdir()
    record = msgspec.msgpack.encode(Ended(1, "complete", Trajectory("t1", "p", "soak", held)))
    frames.path(tmp_path / "trajectories", "ended", 0).write_bytes(frames.frame(record))
    books = script.Books()
    books.ended = {"t1", "t2"}
    books.answers = {("t1", 0): [5, 6], ("t1", 1): "7", ("t1", 3): [1, 1], ("t2", 0): "x"}
    found = script.accounts(tmp_path, books, Words())
    assert found == {"answers": 4, "trajectories": 2, "lost": 1, "lost_trajectories": 1, "wrong": 1, "doubled": 2,
                     "holes_filled": 1}  # fmt: skip
