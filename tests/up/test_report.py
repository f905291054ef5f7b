"""Summary, report and picture, from files as the components write them."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rlctl.config import load
from rlctl.up.history.snapshot import folded, seconds_per_step, snapshot, throughput
from rlctl.up.history.summary import summarize
from rlctl.up.report import curve, report


def test_the_summary_has_what_was_promised(run_dir: Path) -> None:
    summary = summarize(run_dir)
    assert summary["status"] == "ok"
    assert (summary["steps"], summary["policy_version"], summary["wall_s"]) == (80, 80, 412.0)
    assert summary["checkpoint"] == str(run_dir / "checkpoints" / "step_80")
    assert summary["tokens"] == {"trained": 320_000}
    first = summary["eval"][0]
    assert (first["step"], first["env"], first["episodes"], first["success_rate"]) == (0, "frozenlake", 256, 0.4)
    assert {"mean_reward", "success_se", "floor", "ceiling", "name", "temperature"} <= set(first)
    assert [row["step"] for row in summary["eval"]] == sorted(row["step"] for row in summary["eval"])


def test_the_summary_names_the_best_checkpoint_where_one_was_asked_for(run_dir: Path) -> None:
    assert summarize(run_dir)["best"] is None
    best = {"checkpoint": "step_40", "metric": "val.success_rate", "value": 0.7}
    (run_dir / "checkpoints" / "best.json").write_text(json.dumps(best))
    path = str(run_dir / "checkpoints" / "step_40")
    assert summarize(run_dir)["best"] == {**best, "checkpoint": path, "step": 40}


def test_curves_of_several_runs_are_drawn_side_by_side(tmp_path: Path) -> None:
    rows = [
        {"step": step, "success_rate": 0.1 * step, "success_se": 0.02, "env": "a", "floor": 0.1, "ceiling": 1.0}
        for step in range(4)
    ]
    path = curve.compare({"grpo": [rows, rows[:3]], "ppo": [rows]}, "two of them", tmp_path / "made" / "curves.png")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_every_sample_is_counted_once_and_the_rest_is_open(run_dir: Path) -> None:
    samples = summarize(run_dir)["samples"]
    assert samples["open"] == 21000 - 15000 - 1000 - 4480
    assert samples["created"] == sum(count for name, count in samples.items() if name != "created")


def test_phases_have_their_names_and_the_trainer_its_parts(run_dir: Path) -> None:
    phases = summarize(run_dir)["phases"]
    assert set(phases) == {"pool", "engine", "agent", "gateway", "trainer"}
    assert phases["agent"] == {"cpu_s": 60.0, "wall_s": 400.0}
    assert phases["trainer"]["parts"]["wait"] == {"cpu_s": 0.8, "wall_s": 120.0}


def test_reward_parts_are_in_the_summary_and_on_the_page(run_dir: Path) -> None:
    parts = {"env": {"samples": 40, "mean": 0.41}, "judge": {"samples": 40, "mean": 6.5}}
    row = {"t": 2.0, "scored": 42, "parts": parts, "errors": {"reward.judge: no_score": 2}}
    rows = [{"t": 1.0, "scored": 0, "parts": {}, "errors": {}}, row]
    (run_dir / "metrics" / "reward.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    found = summarize(run_dir)["rewards"]
    assert found == {"scored": 42, "parts": parts, "errors": {"reward.judge: no_score": 2}}
    assert report.rewards(found).endswith("mean of 42 scored: env 0.41, judge 6.5; 2 x reward.judge: no_score")


def test_what_trackers_got_is_in_the_summary_and_what_they_did_not_get_has_a_cure(run_dir: Path) -> None:
    assert summarize(run_dir)["trackers"] == {}
    (run_dir / "trackers").mkdir()
    counts = {"rows": 90, "pictures": 8, "skipped": 1, "failures": 4, "waiting": 5, "error": "CommError: no one"}
    note = {"name": "wandb", "id": "x", "row_marks": {}, "picture_marks": {}, **counts}
    (run_dir / "trackers" / "wandb.json").write_text(json.dumps(note))
    (found,) = summarize(run_dir)["trackers"].items()
    assert found == ("wandb", counts)
    assert report.tracked(*found, run_dir).endswith(
        "wandb: 90 rows, 8 pictures; 4 failures; 1 pictures refused; "
        f"5 not sent (CommError: no one): rlctl track {run_dir} --to wandb"
    )
    (run_dir / "components").mkdir(exist_ok=True)
    (run_dir / "components" / "track.json").write_text('{"name": "track", "pid": 1, "url": "", "state": "dead"}')
    assert summarize(run_dir)["trackers"]["wandb"]["error"] == "its process died, see logs/track.log"


def test_a_run_without_any_metrics_still_has_a_summary(tmp_path: Path) -> None:
    summary = summarize(tmp_path)
    assert (summary["status"], summary["steps"], summary["eval"], summary["checkpoint"]) == ("unknown", 0, [], None)
    assert summary["samples"]["created"] == 0


def test_a_run_whose_supervisor_is_gone_is_killed_not_running(run_dir: Path) -> None:
    life = json.loads((run_dir / "up.json").read_text()) | {"status": "running", "pid": 2**22 + 1, "started": 1000.0}
    (run_dir / "up.json").write_text(json.dumps(life | {"wall_s": 0.0}))
    summary = summarize(run_dir)
    assert summary["status"] == "killed"
    assert summary["wall_s"] == 400.0  # to the last metrics row


def test_a_counter_that_starts_anew_is_folded() -> None:
    assert folded([{"x": 1}, {"x": 5}, {}, {"x": 2}, {"x": 3}], "x") == 8


def test_the_page_shows_rates_with_error_floor_ceiling_and_the_picture_is_drawn(run_dir: Path) -> None:
    written = report.report(run_dir)
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    report.show(console, run_dir, written)
    page = console.export_text()
    assert "40.0% ± 3.1%" in page
    assert "77.2% ± 2.6%" in page
    assert "+37.2" in page
    assert "13.7%" in page and "100.0%" in page
    assert "greedy" in page
    assert "21000 created = 15000 trained + 1000 stale + 4480 zero_variance + 520 open" in page
    picture = (run_dir / "report" / "curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000


def test_nothing_to_draw_draws_nothing(tmp_path: Path) -> None:
    assert curve.draw(tmp_path, [], "empty", tmp_path / "curve.png") is None
    assert not (tmp_path / "curve.png").exists()


def test_smoothing_has_no_bias_at_its_start() -> None:
    assert curve.smoothed([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])
    assert curve.smoothed([0.0, 1.0], weight=0.5) == pytest.approx([0.0, 2 / 3])


def test_a_snapshot_knows_pace_and_time_left() -> None:
    config = load([], ['model.init="tiny"', "run.steps=100"], environ={}).config
    rows = [{"t": 10.0 * step, "step": step, "tokens": 500, "reward_mean": 0.5, "success": 0.6} for step in (1, 2, 3)]
    assert seconds_per_step(rows) == 10.0
    assert throughput(rows) == 50.0
    pool = [{"queue_ready": 4.0, "policy_version": 3.0}]
    moment = snapshot(config, {"sft": [], "train": rows, "pool": pool, "eval": []}, {"sft": "done", "train": "ready"})
    assert (moment.stage, moment.step, moment.eta_s, moment.queue, moment.version) == ("train", 3, 970.0, 4, 3)
    assert snapshot(config, {"sft": [], "train": [], "pool": [], "eval": []}, {"pool": "starting"}).stage == "start"


def test_the_evaluations_fit_into_80_columns(run_dir: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.evaluations(summarize(run_dir)["eval"]))
    text = console.export_text()
    assert "±" in text and "…" not in text
