"""What is minimised per token: `(logprobs, old, tokens, algo) -> (loss [N], sums of metrics)`.

`r = exp(logprobs - old)`, A = advantage. A sequence is one sample of a micro-batch; samples are never cut, so what is
computed over a sequence does not depend on how the batch is cut either.
"""

from collections.abc import Callable

import torch

from rlctl.config.algorithm import Algo
from rlctl.train.objective.tokens import Sums, Tokens, means_of_sequences

Surrogate = Callable[[torch.Tensor, torch.Tensor, Tokens, Algo], tuple[torch.Tensor, Sums]]


def ppo_clip(logprobs: torch.Tensor, old: torch.Tensor, tokens: Tokens, algo: Algo) -> tuple[torch.Tensor, Sums]:
    """Clipped surrogate with separate bounds and an optional dual clip.

    `l = max(-A r, -A clip(r, 1 - low, 1 + high))`; for A < 0 and c = dual_clip > 1, `l = min(l, -c A)`. Sources: PPO
    arXiv 1707.06347 eq. 7; clip-higher arXiv 2503.14476 eq. 10; dual clip arXiv 1912.09729 eq. 5.
    """
    ratio = (logprobs - old).exp()
    advantages = tokens.advantages
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high))
    capped = torch.zeros_like(loss, dtype=torch.bool)
    if algo.dual_clip:
        bound = -algo.dual_clip * advantages
        capped = (advantages < 0) & (loss > bound)
        loss = torch.where(capped, bound, loss)
    return loss, {**_clipped(ratio, tokens, algo), "clipped_dual": (capped & tokens.real).sum()}


def gspo(logprobs: torch.Tensor, old: torch.Tensor, tokens: Tokens, algo: Algo) -> tuple[torch.Tensor, Sums]:
    """The ratio is the sequence's: the geometric mean of its tokens' ratios, `s = exp(mean_t (logp_t - old_t))`.

    `l_t = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))` with `s_t = sg(s) p_t / sg(p_t)`, which has the value s for
    every token and lets advantages differ by token. Source: GSPO, arXiv 2507.18071.
    """
    sequence = means_of_sequences((logprobs - old).detach(), tokens)
    ratio = (sequence + logprobs - logprobs.detach()).exp()
    advantages = tokens.advantages
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high))
    return loss, _clipped(ratio, tokens, algo)


def cispo(logprobs: torch.Tensor, old: torch.Tensor, tokens: Tokens, algo: Algo) -> tuple[torch.Tensor, Sums]:
    """`l = -sg(clip(r, 1 - low, 1 + high)) A logp`: the weight is clipped, no token loses its gradient.

    Source: MiniMax-M1, arXiv 2506.13585 (which uses no lower bound: clip_low = 1).
    """
    ratio = (logprobs - old).exp()
    weight = ratio.detach().clamp(1 - algo.clip_low, 1 + algo.clip_high)
    return -weight * tokens.advantages * logprobs, _clipped(ratio, tokens, algo)


def sapo(logprobs: torch.Tensor, old: torch.Tensor, tokens: Tokens, algo: Algo) -> tuple[torch.Tensor, Sums]:
    """`l = -A (4 / tau) sigmoid(tau (r - 1))`: a soft gate in the place of the clip, with a tau for either sign of A.

    Source: SAPO, arXiv 2511.20347.
    """
    ratio = (logprobs - old).exp()
    positive, negative = (ratio.new_tensor(tau) for tau in (algo.sapo_tau_positive, algo.sapo_tau_negative))
    tau = torch.where(tokens.advantages > 0, positive, negative)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return -tokens.advantages * gate, _clipped(ratio, tokens, algo)


def policy_gradient(logprobs: torch.Tensor, old: torch.Tensor, tokens: Tokens, algo: Algo) -> tuple[torch.Tensor, Sums]:
    """`l = -A logp`: no ratio at all. Source: Williams 1992, doi 10.1007/BF00992696."""
    return -tokens.advantages * logprobs, _clipped((logprobs - old).exp(), tokens, algo)


def _clipped(ratio: torch.Tensor, tokens: Tokens, algo: Algo) -> Sums:
    """Tokens outside the clip range on the side where that matters, and the sum of ratios."""
    real = tokens.real
    return {
        "clipped_high": ((tokens.advantages > 0) & (ratio > 1 + algo.clip_high) & real).sum(),
        "clipped_low": ((tokens.advantages < 0) & (ratio < 1 - algo.clip_low) & real).sum(),
        "clipped_dual": torch.zeros((), device=ratio.device),
        "ratio": (ratio * real).sum(),
        "ratio_square": (ratio.square() * real).sum(),
    }


SURROGATES: dict[str, Surrogate] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "policy_gradient": policy_gradient,
}
"""By `algo.loss`."""
