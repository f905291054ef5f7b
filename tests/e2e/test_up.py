"""`rlctl up` for real: every process, every edge."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

from tests.e2e.running import SMALL, finish, left_running, pid_of, rows, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_short_run_ends_with_exit_0_a_summary_that_adds_up_and_no_process(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code, out, err = finish(start(run_dir, "--json"))
    assert code == 0, err[-3000:]
    summary = json.loads(out)
    assert summary == json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "ok"
    assert summary["steps"] == summary["policy_version"] == 3
    samples = summary["samples"]
    assert samples["created"] == sum(number for name, number in samples.items() if name != "created")
    assert samples["open"] == 0, "every sample has its end"
    assert samples["trained"] + samples["zero_variance"] >= 3 * 4 * 4
    assert [row["step"] for row in summary["eval"]] == [0, 3]
    assert all(row["floor"] < row["ceiling"] for row in summary["eval"])
    assert (Path(summary["checkpoint"]) / "hf" / "model.safetensors").exists()
    assert left_running(run_dir) == []


def test_a_run_is_on_tensorboard_with_its_curves_and_animations_when_it_ends(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = (*SMALL, "monitor.pictures_every=1", 'monitor.trackers=["tensorboard"]')
    code, out, err = finish(start(run_dir, "--json", settings=settings))
    assert code == 0, err[-3000:]
    assert "tracker        tensorboard: 5 rows" in err
    noted = json.loads(out)["trackers"]["tensorboard"]
    events = EventAccumulator(str(run_dir / "trackers" / "tensorboard"), {IMAGES: 0}).Reload()
    for row in rows(run_dir, "train"):
        for key in ("reward_mean", "loss", "tokens_per_s"):
            if key in row:
                sent = {one.step: one.value for one in events.Scalars(f"train/{key}")}
                assert sent[row["step"]] == pytest.approx(row[key], rel=1e-6)
    rates = [row["success_rate"] for row in rows(run_dir, "eval")]
    assert [one.value for one in events.Scalars("eval/frozenlake/val/success_rate")] == pytest.approx(rates)
    animations = sorted(run_dir.glob("pictures/*/step-*/*/episode.gif"))
    assert len(animations) == noted["pictures"] > 8
    sent = {one.encoded_image_string for tag in events.Tags()["images"] for one in events.Images(tag)}
    assert sent == {path.read_bytes() for path in animations}
    assert (noted["failures"], noted["waiting"], noted["error"]) == (0, 0, "")
    assert left_running(run_dir) == []


@pytest.mark.parametrize(("name", "said"), [("Moody", "not sent (ConnectionError"), ("Fatal", "its process died")])
def test_a_run_ends_well_without_its_tracker_and_tells_what_is_missing(tmp_path: Path, name: str, said: str) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "--json", settings=(*SMALL, f'monitor.trackers=["tests.trackers.anybodys:{name}"]'))
    wait_for(run_dir.is_dir, 60, "the run directory")
    (run_dir / "mood").write_text("open")
    code, out, err = finish(process)
    assert code == 0, err[-3000:]
    assert json.loads(out)["status"] == "ok"
    assert f"tests.trackers.anybodys:{name}: 0 rows" in err and said in err
    assert left_running(run_dir) == []


def test_a_run_with_two_gateway_workers_adds_up_as_well(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code, out, err = finish(start(run_dir, "--json", settings=(*SMALL, "gateway.workers=2")))
    assert code == 0, err[-3000:]
    samples = json.loads(out)["samples"]
    assert samples["created"] == sum(number for name, number in samples.items() if name != "created")
    last = rows(run_dir, "gateway")[-1]
    assert last["workers"] == 2 and last["errors"] == last["failed"] == 0
    assert last["acknowledged"] + last["refused"] == last["steps"] > 0
    assert left_running(run_dir) == []


def test_the_resolved_file_runs_again_as_it_is(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert finish(start(first))[0] == 0
    resolved = str(first / "resolved.toml")
    assert finish(start(second, preset=resolved, settings=()))[0] == 0
    assert (first / "resolved.toml").read_text().replace(str(first), "X") == (
        second / "resolved.toml"
    ).read_text().replace(str(second), "X")


@pytest.mark.parametrize("victim", ["engine-0", "train", "pool"])
def test_a_killed_component_ends_the_run_with_exit_3_and_names_it(tmp_path: Path, victim: str) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, settings=(*SMALL, "run.steps=1000"))
    wait_for(lambda: rows(run_dir, "train"), 300, "a first training step")
    os.kill(pid_of(run_dir, victim), signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finish(process, timeout_s=30)
    assert time.monotonic() - killed < 10
    assert code == 3, err[-2000:]
    assert victim in err
    assert "Traceback" not in err.split("last lines")[0]
    assert left_running(run_dir) == []
    assert json.loads((run_dir / "summary.json").read_text())["status"] != "ok"


def test_ctrl_c_ends_everything_with_exit_130(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, settings=(*SMALL, "run.steps=1000"))
    wait_for(lambda: rows(run_dir, "train"), 300, "a first training step")
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process, timeout_s=30)
    assert code == 130
    assert left_running(run_dir) == []


def test_a_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, settings=(*SMALL, "run.steps=1000"))
    wait_for(lambda: rows(run_dir, "train"), 300, "a first training step")
    process.kill()
    process.communicate()
    wait_for(lambda: not left_running(run_dir), 15, "every process gone")


@pytest.mark.parametrize("every", [1, 3])
def test_a_killed_run_resumes_from_its_checkpoint_and_its_samples_still_add_up(tmp_path: Path, every: int) -> None:
    """With every = 3 it is killed at least two steps after a checkpoint: their samples are learned from again."""
    run_dir = tmp_path / "run"
    process = start(run_dir, settings=(*SMALL, "run.steps=12", f"ckpt.every={every}"))
    wait_for(lambda: len(rows(run_dir, "train")) >= every + 2, 300, "two training steps after a checkpoint")
    process.kill()
    process.communicate()
    wait_for(lambda: not left_running(run_dir), 15, "every process gone")
    resumed = subprocess.Popen(
        [sys.executable, "-m", "rlctl", "up", "--resume", str(run_dir), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, out, err = finish(resumed)
    assert code == 0, err[-3000:]
    summary = json.loads(out)
    assert (summary["status"], summary["steps"], summary["policy_version"]) == ("ok", 12, 12)
    samples = summary["samples"]
    assert samples["created"] == sum(number for name, number in samples.items() if name != "created")
    assert samples["trained"] + samples["zero_variance"] == 12 * 4 * 4, (
        "every step used its batch, no batch was used twice"
    )
    assert [row["step"] for row in rows(run_dir, "train")][-1] == 12
    assert left_running(run_dir) == []
