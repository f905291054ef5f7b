"""A run that trains adapters, from the warm start to the measured model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.running import SMALL, finish, left_running, rows, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SETTINGS = (
    *(setting for setting in SMALL if not setting.startswith("sft.")),
    *("sft.max_steps=4", "sft.stop_success=0.0", "sft.check_episodes=8", "sft.data.size=40", "sft.data.episodes=1"),
    *("train.lora.rank=4", "train.optim.lr=1e-2", "ckpt.every=1", "ckpt.merged=never"),
    "algo.advantage=reinforce",  # every group has a signal
)


def rlctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rlctl", *words], capture_output=True, text=True, timeout=240)


def test_adapters_on_a_warm_start_are_served_saved_resumed_and_measured(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code, _, err = finish(start(run_dir, settings=SETTINGS))
    assert code == 0, err[-3000:]
    step = run_dir / "checkpoints" / "step_3"
    assert sorted(path.name for path in step.iterdir()) == ["adapter", "scalars.pt", "state.json", "trainer"]
    base = json.loads((step / "adapter" / "base.json").read_text())
    assert base["path"] == str(run_dir / "sft" / "model")
    whole = (run_dir / "sft" / "model" / "model.safetensors").stat().st_size
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in (run_dir / "weights").glob("v*")]
    assert sizes and max(sizes) < whole / 4
    # What the engines sampled with is what the trainer has, so before an update both give a token the same logprob.
    assert rows(run_dir, "train")[0]["logprob_gap_max"] < 1e-4
    assert all(row["grad_norm"] > 0 for row in rows(run_dir, "train"))

    code, _, err = finish(start(run_dir, "--resume", settings=("run.steps=4",), preset=str(run_dir)))
    assert code == 0, err[-3000:]
    assert [row["step"] for row in rows(run_dir, "train")] == [1, 2, 3, 4]

    done = rlctl("eval", str(run_dir), "--episodes", "8", "--out", str(tmp_path / "eval"), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    merged = load_file(run_dir / "checkpoints" / "step_4" / "hf" / "model.safetensors")
    start_of_rl = load_file(run_dir / "sft" / "model" / "model.safetensors")
    assert merged.keys() == start_of_rl.keys()
    assert any(not torch.equal(merged[name], start_of_rl[name]) for name in merged)
    assert rlctl("merge", str(run_dir), "--json").returncode == 0, "it is there already, which is as good"
    assert left_running(run_dir) == []
