from pathlib import Path

import numpy as np
import pytest

from rlctl.errors import RlctlError
from rlctl.telemetry.metrics import read
from rlctl.train.learning.measure import with_column
from rlctl.train.monitor.diagnostics import collapsed, mismatch, places
from rlctl.train.monitor.report import update_metrics
from rlctl.train.monitor.watch import Watch

from .conftest import config_for
from .running import record, replay, run
from .test_batches import sample


def test_the_mismatch_is_tabled_by_env_turn_and_place_in_the_answer() -> None:
    one = sample("a", [(2, 3), (1, 2)])
    gaps = np.array([0.5, 0.0, 0.0, -1.5, 0.0])
    rows = mismatch([with_column(one, "proximal", one.logprobs + gaps)])
    found = {(row["by"], row["value"]): (row["tokens"], row["gap_mean"], row["gap_max"]) for row in rows}
    assert found[("env", "")] == (5, pytest.approx(0.4), pytest.approx(1.5))
    assert found[("turn", 0)] == (3, pytest.approx(0.5 / 3), pytest.approx(0.5))
    assert found[("turn", 1)] == (2, pytest.approx(0.75), pytest.approx(1.5))
    assert found[("position", "1-1")] == (2, pytest.approx(1.0), pytest.approx(1.5))
    assert found[("position", "2-4")][1] == pytest.approx(0)
    (kl,) = [row["kl"] for row in rows if row["by"] == "env"]
    assert kl == pytest.approx((np.exp(0.5) - 1.5 + np.exp(-1.5) + 0.5) / 5)


def test_places_restart_with_each_turn() -> None:
    assert places(np.array([0, 0, 2, 2, 2, 5])).tolist() == [0, 1, 0, 1, 2, 0]


def row(std: float, entropy: float, reward: float) -> dict[str, float]:
    return {"reward_std": std, "entropy": entropy, "reward_mean": reward}


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (row(0.01, 0.05, 0.1), True),
        (row(0.01, 0.05, 0.9), False),
        (row(0.3, 0.05, 0.1), False),
        (row(0.01, 0.9, 0.1), False),
    ],
    ids=["echo trap", "solved", "rewards differ", "still exploring"],
)
def test_a_collapse_is_reward_std_and_entropy_gone_without_a_better_reward(late: dict[str, float], told: bool) -> None:
    rows = [row(0.4, 1.0, 0.3)] * 3 + [late] * 3
    assert bool(collapsed(rows, 3, 0.1)) == told
    assert collapsed([*rows[:-1], row(0.4, 1.0, 0.3)], 3, 0.1) == "", "one healthy step in the window"
    assert collapsed(rows[:5], 3, 0.1) == "", "too early to say"


def test_a_collapsed_run_warns_or_stops(model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for stop in (False, True):
        monitor = {"collapse_window": 1, "collapse_stop": stop, "mismatch_alarm": 0.5}
        watch = Watch(config_for(model_dir, tmp_path, monitor=monitor), 0)
        watch.step({"step": 1, **row(0.4, 1.0, 0.3), "logprob_gap_mean": 0.4})
        assert "differ" not in caplog.text
        bad = {"step": 2, **row(0.0, 0.0, 0.0), "logprob_gap_mean": 0.6}
        if stop:
            with pytest.raises(RlctlError, match="step 2: training has collapsed"):
                watch.step(bad)
        else:
            watch.step(bad)
            assert "has collapsed" in caplog.text and "differ by 0.6" in caplog.text
        caplog.clear()


def test_tables_are_written_when_due_and_change_no_loss(model_dir: Path, tmp_path: Path) -> None:
    recorded = record(tmp_path / "batches", 3)
    plain = run(replay(model_dir, tmp_path / "plain", recorded, 3))
    watched = run(replay(model_dir, tmp_path / "watched", recorded, 3, monitor={"mismatch_every": 2}))
    assert [r["loss"] for r in plain] == [r["loss"] for r in watched]
    rows = list(read(tmp_path / "watched" / "metrics" / "mismatch.jsonl"))
    assert {r["step"] for r in rows} == {1, 3} and {r["by"] for r in rows} == {"env", "turn", "position"}
    (env,) = [r for r in rows if r["by"] == "env" and r["step"] == 1]
    assert env["value"] == "fake" and env["gap_mean"] > 0.1


def test_the_effective_sample_size_by_hand() -> None:
    names = ("loss", "kl_behaviour", "logprob_gap", "max_logprob_gap", "clipped_high", "clipped_low", "clipped_dual")
    sums = dict.fromkeys((*names, "entropy", "skipped", "vetoed", "computed_tokens"), 0.0)
    sums |= {"divisor": 1.0, "grad_norm": 1.0, "lr": 1.0, "tokens": 2.0, "ratio": 4.0, "ratio_square": 10.0}
    assert update_metrics([sums])["effective_sample_size"] == pytest.approx(16 / 20)  # ratios 1 and 3
