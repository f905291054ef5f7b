"""Losses over trainable tokens, as sums.

Every function works on flat arrays `[N]`, one entry per trainable token of a micro-batch, and returns a SUM. The
caller divides by one global count (over ranks, micro-batches and the whole minibatch), so the gradient does not
depend on how the batch is cut. The tokens' weights carry the aggregation: see `aggregation`.
"""

import torch

from rlctl.config.algorithm import Algo, Correction
from rlctl.train.objective.divergence import ESTIMATORS, k3
from rlctl.train.objective.surrogates import SURROGATES
from rlctl.train.objective.tokens import Sums, Tokens, means_of_sequences, sums_of_sequences


def proximal(logprobs: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Log-probabilities that the ratio is taken against, `[N]`, without gradient.

    Measured before the first update (column `proximal`); or guessed from versions (column `blend` = a): `behaviour +
    a (logp - behaviour)`, which is the behaviour itself for a token of the current policy; else the behaviour.
    Sources: decoupled PPO, arXiv 2110.00641; its asynchronous use, arXiv 2505.24298.
    """
    if "proximal" in tokens.columns:
        return tokens.columns["proximal"]
    if "blend" in tokens.columns:
        return tokens.behaviour + tokens.columns["blend"] * (logprobs.detach() - tokens.behaviour)
    return tokens.behaviour


def correction_weights(old: torch.Tensor, tokens: Tokens, settings: Correction) -> torch.Tensor:
    """`w = old / behaviour` per token `[N]`, of the token, its sequence, or the sequence's geometric mean.

    truncate: `min(w, cap)`; mask: 0 outside `[floor, cap]`. Sources: truncated, Ionides 2008, doi
    10.1198/106186008X320456; masked by a cap, as AReaL's decoupled PPO, arXiv 2505.24298.
    """
    logs = old - tokens.behaviour
    if settings.level == "sequence":
        logs = sums_of_sequences(logs, tokens)
    elif settings.level == "geometric":
        logs = means_of_sequences(logs, tokens)
    weights = logs.exp()
    if settings.mode == "truncate":
        return weights.clamp(max=settings.cap)
    return torch.where((weights >= settings.floor) & (weights <= settings.cap), weights, 0.0)


def policy_loss(
    logprobs: torch.Tensor, entropies: torch.Tensor, tokens: Tokens, algo: Algo, bonus: float | None = None
) -> tuple[torch.Tensor, Sums]:
    """`sum w (c l + coef KL - bonus H)`: surrogate l with correction weight c, and the sums of the metrics.

    `bonus`: of this step, where it adapts; else `algo.entropy_bonus`.
    """
    old = proximal(logprobs, tokens)
    losses, sums = SURROGATES[algo.loss](logprobs, old, tokens, algo)
    real = tokens.real.float()
    if algo.correction.level != "off":
        weights = correction_weights(old, tokens, algo.correction)
        losses = losses * weights
        sums |= {"correction": (weights * real).sum(), "corrected_away": ((weights == 0) * real).sum()}
    if algo.kl.coef and algo.kl.place == "loss":
        losses = losses + algo.kl.coef * to_reference(logprobs, tokens, algo)
    bonus = algo.entropy_bonus if bonus is None else bonus
    loss = (losses * tokens.weights).sum()
    if bonus:
        loss = loss - bonus * (entropies * tokens.weights).sum()
    with torch.no_grad():
        gap = (logprobs - tokens.behaviour).abs() * real
        sums |= {
            "loss": loss.detach(),
            "entropy": (entropies * real).sum(),
            "kl_behaviour": (k3(tokens.behaviour, logprobs) * real).sum(),
            "logprob_gap": gap.sum(),
            "max_logprob_gap": gap.max() if len(gap) else gap.sum(),
            "tokens": real.sum(),
        }
        if "reference" in tokens.columns:
            sums["kl_reference"] = (k3(logprobs, tokens.columns["reference"]) * real).sum()
    return loss, {name: value.detach() for name, value in sums.items()}


def to_reference(logprobs: torch.Tensor, tokens: Tokens, algo: Algo) -> torch.Tensor:
    """`algo.kl.kind` from the policy to the reference per token `[N]`."""
    if algo.kl.kind == "full":
        assert tokens.divergence is not None, "the policy was not asked for it"
        return tokens.divergence
    return ESTIMATORS[algo.kl.kind](logprobs, tokens.columns["reference"])


def value_loss(values: torch.Tensor, tokens: Tokens, clip: float, huber: float) -> tuple[torch.Tensor, Sums]:
    """`sum w max(h(V - G), h(V_old + clip(V - V_old, -clip, clip) - G))` with returns G: values `[N]`.

    `h(e) = e^2 / 2`, or for huber = d > 0 and |e| > d: `d (|e| - d / 2)`. clip = 0: only the first term. Sources: PPO's
    value clipping as in arXiv 2005.12729, section 3; Huber 1964, doi 10.1214/aoms/1177703732.
    """
    returns, old = tokens.columns["returns"], tokens.columns["values"]
    losses = _half_square(values - returns, huber)
    clipped = torch.zeros_like(losses, dtype=torch.bool)
    if clip:
        other = _half_square(old + (values - old).clamp(-clip, clip) - returns, huber)
        clipped, losses = other > losses, torch.maximum(losses, other)
    loss, real = (losses * tokens.weights).sum(), tokens.real.float()
    with torch.no_grad():
        sums = {
            "loss": loss.detach(),
            "tokens": real.sum(),
            "value": (values * real).sum(),
            "return": (returns * real).sum(),
            "return_square": (returns.square() * real).sum(),
            "residual": ((returns - old) * real).sum(),
            "residual_square": ((returns - old).square() * real).sum(),
            "value_clipped": (clipped * real).sum(),
        }
    return loss, sums


def _half_square(error: torch.Tensor, huber: float) -> torch.Tensor:
    if not huber:
        return 0.5 * error.square()
    size = error.abs()
    return torch.where(size <= huber, 0.5 * error.square(), huber * (size - 0.5 * huber))


def nll(logprobs: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, Sums]:
    """Negative log-likelihood `sum w (-logp)`: the supervised loss."""
    loss = -(logprobs * tokens.weights).sum()
    return loss, {"loss": loss.detach(), "tokens": tokens.real.float().sum()}
