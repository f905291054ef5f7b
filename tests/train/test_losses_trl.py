"""Losses that TRL has too, on random batches: its own code, given the same log-probabilities."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlctl.config.algorithm import Algo
from rlctl.train.data.aggregation import aggregate
from rlctl.train.data.batches import grid
from rlctl.train.model.policy import tokens_of
from rlctl.train.objective.losses import policy_loss

from .test_batches import sample

pytestmark = pytest.mark.slow

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({}, {"loss_type": "dapo"}),
    "gspo": (
        {"loss": "gspo", "aggregation": "seq_mean_token_mean"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "grpo": ({"aggregation": "seq_mean_token_mean"}, {"loss_type": "grpo"}),
    "dr_grpo": ({"aggregation": "constant_length"}, {"loss_type": "dr_grpo"}),
    "cispo": ({"loss": "cispo", "clip_low": 1.0}, {"loss_type": "cispo", "epsilon_high": 1.28}),
    "sapo": ({"loss": "sapo", "aggregation": "seq_mean_token_mean"}, {"loss_type": "sapo"}),
    "kl": ({"kl": {"coef": 0.3, "kind": "k3"}}, {"loss_type": "dapo", "beta": 0.3}),
}
LENGTH = 40


@pytest.mark.parametrize("name", SAME)
def test_the_loss_is_trls(name: str) -> None:
    from trl import GRPOTrainer

    settings, theirs = SAME[name]
    algo = Algo(**settings)
    torch.manual_seed(0)
    samples = [sample(f"t{i}", [(3, n)]) for i, n in enumerate((4, 9, 1, 6))]
    micro = grid(samples, 1, 10_000, algo.aggregation, 0, LENGTH)[0].micros[0]
    _, divisor = aggregate(samples, algo.aggregation, LENGTH)
    n = len(micro.targets)
    logprobs, old, reference = -torch.rand(n) * 2, -torch.rand(n) * 2, -torch.rand(n) * 2
    by_row = torch.randn(len(samples))
    rows = torch.from_numpy(micro.sequences)
    tokens = tokens_of(micro, torch.device("cpu"))
    tokens = type(tokens)(old, by_row[rows], tokens.weights, tokens.sequences, {"reference": reference})
    ours = float(policy_loss(logprobs, torch.zeros(n), tokens, algo)[0]) / divisor

    mask = torch.zeros(len(samples), 9)
    places = torch.cat([torch.arange(int((rows == r).sum())) for r in range(len(samples))])
    mask[rows, places] = 1

    def table(values: torch.Tensor) -> torch.Tensor:
        full = torch.zeros_like(mask)
        full[rows, places] = values
        return full

    inputs = {
        "prompt_ids": torch.zeros(len(samples), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(samples), 1),
        "completion_ids": torch.zeros(len(samples), 9, dtype=torch.long),
        "completion_mask": mask,
        "advantages": by_row,
        "old_per_token_logps": table(old),
        "ref_per_token_logps": table(reference),
        "num_items_in_batch": torch.tensor(float(n)),
    }
    found = GRPOTrainer._compute_loss(stand_in(table(logprobs), theirs), None, inputs)
    assert ours == pytest.approx(float(found), rel=1e-5, abs=1e-6)


def stand_in(logprobs: torch.Tensor, settings: dict[str, Any]) -> Any:
    """As much of a GRPOTrainer as its loss looks at; the model's answer is given."""
    from collections import defaultdict

    known = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "importance_sampling_level": "token", **settings}
    options = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    return SimpleNamespace(
        **known,
        args=options,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        _entropy_bonus_enabled=False,
        off_policy_mask_threshold=None,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
