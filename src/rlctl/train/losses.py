"""Losses over trainable tokens, as sums.

Every function works on flat arrays `[N]`, one entry per trainable token of a micro-batch, and returns a SUM. The
caller divides by one global count (over ranks, micro-batches and the whole minibatch), so the gradient does not
depend on how the batch is cut. `weights [N]` carry the aggregation: see `aggregate`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rlctl.config.learning import Algo
from rlctl.train.samples import TrainSample

Sums = dict[str, torch.Tensor]
"""Detached scalars, to be added up over micro-batches and ranks; keys that begin with `max_` are maxima instead."""


@dataclass(frozen=True)
class Tokens:
    """What the loss knows about each trainable token; tensors `[N]`."""

    behaviour: torch.Tensor
    """float32: log-probability under the policy that sampled the token."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Share of the token in the global sum."""


def token_logprobs(logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """`log softmax(z / temperature)[target]`: logits `[N, V]`, targets `[N]`, temperatures `[N]` -> float32 `[N]`."""
    scaled = logits.float() / temperatures[:, None]
    return scaled.gather(1, targets[:, None])[:, 0] - scaled.logsumexp(1)


def entropy(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """`H = logsumexp(z) - sum softmax(z) z` with z = logits / temperature: `[N, V]` -> float32 `[N]`, in nats."""
    scaled = logits.float() / temperatures[:, None]
    return scaled.logsumexp(1) - (scaled.softmax(1) * scaled).sum(1)


def aggregate(samples: Sequence[TrainSample], aggregation: str) -> tuple[list[float], float]:
    """Weight of a token of each sample, and the divisor of the whole minibatch; a sequence is a trajectory.

    token_mean          sum_t l_t / (number of tokens)                        DAPO, arXiv 2503.14476, eq. 8
    seq_mean_token_sum  sum_i sum_t l_it / (number of sequences)              Dr.GRPO, arXiv 2503.20783
    seq_mean_token_mean sum_i (1 / n_i) sum_t l_it / (number of sequences)    GRPO, arXiv 2402.03300, eq. 3
    """
    if aggregation == "token_mean":
        return [1.0] * len(samples), float(max(1, sum(sample.trainable for sample in samples)))
    sequences = float(max(1, len({sample.uid for sample in samples})))
    if aggregation == "seq_mean_token_sum":
        return [1.0] * len(samples), sequences
    return [1.0 / max(1, sample.siblings_tokens) for sample in samples], sequences


def ppo_clip(logprobs: torch.Tensor, tokens: Tokens, low: float, high: float, dual: float) -> tuple[torch.Tensor, Sums]:
    """Clipped surrogate with separate bounds and an optional dual clip, summed with the tokens' weights.

    `r = exp(logp - behaviour)`, `l = max(-A r, -A clip(r, 1 - low, 1 + high))`; for A < 0 and c = dual > 1, `l =
    min(l, -c A)`. Sources: PPO arXiv 1707.06347 eq. 7; clip-higher arXiv 2503.14476 eq. 10; dual clip arXiv
    1912.09729 eq. 5.
    """
    ratio = (logprobs - tokens.behaviour).exp()
    plain, advantages = -tokens.advantages * ratio, tokens.advantages
    loss = torch.maximum(plain, -advantages * ratio.clamp(1 - low, 1 + high))
    capped = torch.zeros_like(loss, dtype=torch.bool)
    if dual:
        bound = -dual * advantages
        capped = (advantages < 0) & (loss > bound)
        loss = torch.where(capped, bound, loss)
    real = tokens.weights > 0
    sums = {
        "clipped_high": ((advantages > 0) & (ratio > 1 + high) & real).sum(),
        "clipped_low": ((advantages < 0) & (ratio < 1 - low) & real).sum(),
        "clipped_dual": (capped & real).sum(),
        "ratio": (ratio * real).sum(),
    }
    return (loss * tokens.weights).sum(), {name: value.detach() for name, value in sums.items()}


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(reference || policy) per token, estimated on samples of the reference: `exp(x) - 1 - x`, x = logp - ref.

    `[N], [N] -> [N]`; unbiased, never negative. Source: J. Schulman, "Approximating KL Divergence", 2020.
    """
    difference = logprobs - reference
    return difference.expm1() - difference


def policy_loss(
    logprobs: torch.Tensor, entropies: torch.Tensor, tokens: Tokens, algo: Algo
) -> tuple[torch.Tensor, Sums]:
    """`sum w (l - bonus H)` with the loss of `algo`, and the sums of its metrics (loss, entropy, KL, clips, tokens)."""
    loss, sums = ppo_clip(logprobs, tokens, algo.clip_low, algo.clip_high, algo.dual_clip)
    if algo.entropy_bonus:
        loss = loss - algo.entropy_bonus * (entropies * tokens.weights).sum()
    real = (tokens.weights > 0).float()
    with torch.no_grad():
        gap = (logprobs - tokens.behaviour).abs() * real
        sums |= {
            "loss": loss.detach(),
            "entropy": (entropies * real).sum(),
            "kl_behaviour": (k3(logprobs, tokens.behaviour) * real).sum(),
            "logprob_gap": gap.sum(),
            "max_logprob_gap": gap.max() if len(gap) else gap.sum(),
            "tokens": real.sum(),
        }
    return loss, sums


def nll(logprobs: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, Sums]:
    """Negative log-likelihood `sum w (-logp)`: the supervised loss."""
    loss = -(logprobs * tokens.weights).sum()
    return loss, {"loss": loss.detach(), "tokens": (tokens.weights > 0).float().sum()}


def add_up(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sum (keys `max_...`: maximum) over micro-batches or ranks."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name.startswith("max_"):
                total[name] = max(total.get(name, float("-inf")), value)
            else:
                total[name] = total.get(name, 0.0) + value
    return total
