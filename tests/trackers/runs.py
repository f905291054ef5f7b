"""Run directories as the components write them: metrics, pictures, resolved.toml."""

from pathlib import Path
from typing import Any

from rlctl.config import load
from rlctl.pictures import files
from rlctl.telemetry.metrics import Metrics
from tests.pictures.playing import played

LOSSES = (0.5, 0.25, 0.125)
"""Exact in float32, which TensorBoard keeps."""


def write(run_dir: Path, name: str, rows: list[dict[str, Any]]) -> None:
    metrics = Metrics(run_dir, name)
    for row in rows:
        metrics.write(**row)
    metrics.close()


def picture(run_dir: Path, step: int) -> Path:
    """The animation of a FrozenLake episode of the evaluation "val"."""
    recorded, _ = played(["<answer>Left || Up</answer>"], step=step, name="frozenlake", actions_per_turn=2)
    return files.save(run_dir, recorded) / files.ANIMATION


def evaluated(step: int, rate: float) -> dict[str, Any]:
    return {"step": step, "env": "frozenlake", "name": "val", "success_rate": rate, "floor": None}


def make(run_dir: Path, *overrides: str) -> Path:
    """Three training steps, an evaluation before and after with a picture each, and the pool's statistics."""
    run_dir.mkdir(exist_ok=True)
    settings = ['model.init="tiny"', 'env=[{name="frozenlake"}]', "run.name=lake", *overrides]
    (run_dir / "resolved.toml").write_text(load([], settings, environ={}).toml())
    write(run_dir, "eval", [{"t": 1.0, **evaluated(0, 0.25)}, {"t": 5.0, **evaluated(3, 0.75)}])
    write(run_dir, "train", [{"t": 1.0 + n, "step": n, "loss": loss} for n, loss in enumerate(LOSSES, 1)])
    write(run_dir, "grad_norms", [{"t": 6.0, "step": 3, "layer": "lm_head", "grad_norm": 2.0, "not_finite": 0}])
    write(run_dir, "pool", [{"train.created": 12}])
    picture(run_dir, 0)
    picture(run_dir, 3)
    return run_dir
