"""Gradient norms by layer."""

import json
import math
from pathlib import Path

import pytest

from rlctl.config.algorithm import Algo
from rlctl.config.learning import Optim
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.learning.norms import layer_of
from rlctl.train.learning.optim import Extras
from rlctl.train.monitor.report import layer_norms
from rlctl.train.objective.losses import policy_loss

from .running import record, replay, run
from .test_policy import loaded, samples

LAYERS = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("lm.model.layers.12.self_attn.q_proj.weight", "model.layers.12"),
        ("lm.model.layers.0.mlp.up_proj.lora_A.default.weight", "model.layers.0"),
        ("lm.transformer.h.3.ln_1.bias", "transformer.h.3"),
        ("lm.model.norm.weight", "model.norm"),
        ("lm.lm_head.weight", "lm_head"),
        ("head.bias", "head"),
    ],
)
def test_the_layer_of_a_parameter(parameter: str, layer: str) -> None:
    assert layer_of(parameter) == layer


def test_squares_of_the_layers_norms_add_up_to_that_of_the_gradient(model_dir: Path, tmp_path: Path) -> None:
    policy, _ = loaded(model_dir, tmp_path)
    batch = grid(samples(), 1, 512, "token_mean")[0]
    optimizer = optim.adamw(policy.parameters(), Optim())
    loss = lambda a, b, c: policy_loss(a, b, c, Algo())  # noqa: E731
    update = optim.step(policy, optimizer, batch, loss, 1, 0.0, 1e-3, Extras(layers=True))
    assert list(update.layer_norms) == LAYERS
    assert math.hypot(*update.layer_norms.values()) == pytest.approx(update.grad_norm, rel=1e-5)
    assert not optim.step(policy, optimizer, batch, loss, 1, 0.0, 1e-3).layer_norms


def test_rows_are_means_over_the_finite_optimizer_steps_of_a_training_step() -> None:
    updates = [
        {"loss": 1.0, "grad_norm/a": 1.0, "grad_norm/b": math.nan},
        {"grad_norm/a": 3.0, "grad_norm/b": math.inf},
    ]
    assert layer_norms(updates) == [
        {"layer": "a", "grad_norm": 2.0, "not_finite": 0},
        {"layer": "b", "grad_norm": None, "not_finite": 2},
    ]
    assert layer_norms([]) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_the_key_writes_a_row_per_layer_and_step(wanted: bool, model_dir: Path, tmp_path: Path) -> None:
    recorded = record(tmp_path / "batches", 2)
    run(replay(model_dir, tmp_path / "run", recorded, 2, monitor={"layer_grad_norms": wanted}))
    path = tmp_path / "run" / "metrics" / "grad_norms.jsonl"
    assert path.exists() == wanted
    if wanted:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(row["step"], row["layer"]) for row in rows] == [(step, name) for step in (1, 2) for name in LAYERS]
        assert all(row["grad_norm"] > 0 for row in rows)
