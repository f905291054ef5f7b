"""The metrics row of one training step, from sums: pure."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlctl.train.data.samples import TrainSample
from rlctl.train.objective.shaping import Shaped
from rlctl.train.objective.tokens import add_up

PER_TOKEN = {
    "clipped_high": "clip_high_fraction",
    "clipped_low": "clip_low_fraction",
    "clipped_dual": "clip_dual_fraction",
    "ratio": "ratio_mean",
    "entropy": "entropy",
}
"""Sum over tokens -> name of its mean."""
SOMETIMES = {
    "kl_reference": "kl_reference",
    "correction": "correction_mean",
    "corrected_away": "correction_masked_fraction",
}
"""The same, of what only some algorithms have."""
LAYER = "grad_norm/"
"""Before the name of a layer: the norm of its gradient."""


def update_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over the optimizer steps of one training step, each given as global sums with divisor, norm, lr, skipped.

    `loss`: mean over optimizer steps of sum / divisor. `kl_behaviour`, `logprob_gap_mean`, `logprob_gap_max`: of the
    first optimizer step only, before the weights move, so they measure engine against trainer (and staleness), not
    the update. `effective_sample_size`: `(sum r)^2 / (N sum r^2)` over all tokens, 1 where all ratios are alike.
    """
    if not updates:
        return {"updates": 0, "skipped_updates": 0}
    total, first = add_up(updates), updates[0]
    tokens, first_tokens = max(1.0, total["tokens"]), max(1.0, first["tokens"])
    finite = [u["grad_norm"] for u in updates if not u["skipped"]]
    return {
        "updates": len(updates),
        "skipped_updates": int(total["skipped"]),
        "loss": float(np.mean([u["loss"] / u["divisor"] for u in updates])),
        "grad_norm": float(np.mean(finite)) if finite else 0.0,
        "lr": updates[-1]["lr"],
        "tokens": int(total["tokens"]),
        "computed_tokens": int(total["computed_tokens"]),
        "kl_behaviour": first["kl_behaviour"] / first_tokens,
        "logprob_gap_mean": first["logprob_gap"] / first_tokens,
        "logprob_gap_max": first["max_logprob_gap"],
        "effective_sample_size": total["ratio"] ** 2 / max(1e-12, tokens * total["ratio_square"]),
        **{name: total[key] / tokens for key, name in PER_TOKEN.items()},
        **{name: total[key] / tokens for key, name in SOMETIMES.items() if key in total},
        **({"vetoed_updates": int(total["vetoed"])} if total["vetoed"] else {}),
    }


def layer_norms(updates: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """Rows `{"layer", "grad_norm", "not_finite"}`, in the model's order, where norms were measured by layer.

    `grad_norm`: mean over the optimizer steps of one training step in which it was finite, else null; `not_finite`: the
    number of the others.
    """
    rows = []
    for key in updates[0] if updates else ():
        if key.startswith(LAYER):
            finite = [update[key] for update in updates if math.isfinite(update[key])]
            mean = float(np.mean(finite)) if finite else None
            rows.append({"layer": key.removeprefix(LAYER), "grad_norm": mean, "not_finite": len(updates) - len(finite)})
    return rows


def critic_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Value loss, and how much of the returns' variance the critic explained before it learned from them.

    `explained_variance = 1 - var(G - V_old) / var(G)`, from sums over all tokens.
    """
    if not updates:
        return {}
    total, first = add_up(updates), updates[0]
    tokens, first_tokens = max(1.0, total["tokens"]), max(1.0, first["tokens"])

    def variance(name: str) -> float:
        return first[f"{name}_square"] / first_tokens - (first[name] / first_tokens) ** 2

    return {
        "value_loss": float(np.mean([u["loss"] / u["divisor"] for u in updates])),
        "value_mean": total["value"] / tokens,
        "return_mean": total["return"] / tokens,
        "value_clip_fraction": total["value_clipped"] / tokens,
        "explained_variance": 1 - variance("residual") / max(variance("return"), 1e-12),
        "critic_grad_norm": float(np.mean([u["grad_norm"] for u in updates])),
        "critic_lr": updates[-1]["lr"],
    }


def batch_metrics(shaped: Shaped, version: int) -> dict[str, float]:
    """Rewards, success, advantages, outcomes and staleness of the batch."""
    trajectories = len(shaped.outcomes)
    row: dict[str, float] = {
        "groups": shaped.groups,
        "trajectories": trajectories,
        "zero_variance_share": shaped.flat_groups / max(1, shaped.groups),
        **{f"outcome_{name}": count for name, count in sorted(shaped.counts().items())},
        **staleness(shaped.samples, version),
    }
    if shaped.rewards:
        row |= {
            "reward_mean": float(np.mean(shaped.rewards)),
            "reward_std": float(np.std(shaped.rewards)),
            "success": float(np.mean(shaped.successes)),
            "advantage_mean": float(np.mean(shaped.advantages)),
            "advantage_std": float(np.std(shaped.advantages)),
        }
    return row


def staleness(samples: Sequence[TrainSample], version: int) -> dict[str, float]:
    """How many versions the trained tokens lag behind the weights they train: mean over tokens and maximum."""
    if not samples:
        return {}
    lags = version - np.concatenate([sample.versions for sample in samples])
    return {
        "staleness_mean": float(lags.mean()),
        "staleness_max": int(lags.max()),
        "sequence_tokens": sum(len(sample) for sample in samples),
        "samples": len(samples),
    }
