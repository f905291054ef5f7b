"""A finished run, as its files are."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

STEPS = 80


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def evaluation(step: int, name: str, rate: float, temperature: float) -> dict[str, Any]:
    return {
        **{"t": 1000.0 + 5 * step, "step": step, "env": "frozenlake", "name": name, "temperature": temperature},
        **{"episodes": 256, "success_rate": rate, "success_se": math.sqrt(rate * (1 - rate) / 256)},
        **{"mean_reward": rate - 0.05, "floor": 0.137, "ceiling": 1.0, "policy_version": step, "seconds": 2.0},
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of 80 steps whose success rises from 40% to 78%."""
    dice = random.Random(1)
    folder = tmp_path / "run"
    rise = [0.4 + 0.4 * (1 - math.exp(-step / 30)) for step in range(STEPS + 1)]
    train = [
        {
            **{"t": 1000.0 + 5 * step, "step": step, "policy_version": step, "tokens": 4000, "loss": 0.01},
            **{"reward_mean": rise[step] - 0.1 + dice.gauss(0, 0.05), "success": rise[step] + dice.gauss(0, 0.04)},
            **{"staleness_mean": 0.5, "train_s": 2.0, "train_cpu_s": 1.9, "wait_s": 1.5, "wait_cpu_s": 0.01},
        }
        for step in range(1, STEPS + 1)
    ]
    write(folder / "metrics" / "train.jsonl", train)
    evals = [evaluation(step, "val", rise[step], 1.0) for step in range(0, STEPS + 1, 20)]
    evals += [evaluation(step, "val-greedy", min(1.0, rise[step] + 0.08), 0.0) for step in range(0, STEPS + 1, 20)]
    write(folder / "metrics" / "eval.jsonl", sorted(evals, key=lambda row: row["step"]))
    pool = {"train.created": 21000, "train.trained": 15000, "train.stale": 1000, "train.zero_variance": 4480}
    write(
        folder / "metrics" / "pool.jsonl", [{"t": 1.0}, {"t": 2.0, **pool, "policy_version": STEPS, "queue_ready": 3}]
    )
    cpu = {"cpu.pool": 20.0, "cpu.engine-0": 150.0, "cpu.rollout": 60.0, "cpu.gateway": 55.0, "cpu.train": 160.0}
    wall = {name.replace("cpu", "wall"): 400.0 for name in cpu}
    write(folder / "metrics" / "up.jsonl", [{"t": 1.0, **cpu, **wall}])
    (folder / "checkpoints" / "step_40").mkdir(parents=True)
    (folder / "checkpoints" / "step_80").mkdir()
    life = {"pid": 1, "status": "ok", "error": "", "name": "frozenlake-cpu", "steps": STEPS, "started": 0.0}
    (folder / "up.json").write_text(json.dumps(life | {"wall_s": 412.0}))
    return folder
