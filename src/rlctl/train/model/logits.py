"""Logits -> log-probability and entropy, a block of rows at a time: no second `[N, V]` array beside their gradient."""

from collections.abc import Iterator
from typing import Any

import torch

BLOCK = 2**18
"""Logits of one block on the CPU, about what its cache holds; a GPU takes 64 times as many."""


def score(
    logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor, with_entropy: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of `targets` and entropies in nats: `[N, V], [N], [N] -> [N], [N]`, float32 or wider.

    With z = logits / temperature and L = logsumexp(z): `logp = z[target] - L`, `H = L - sum softmax(z) z`.
    `with_entropy`: "" (zeros) | "value" (without gradient) | "grad".
    """
    logprobs, entropies = _Score.apply(logits, targets, temperatures, with_entropy)
    return logprobs, entropies


class _Score(torch.autograd.Function):
    """`dlogp/dz = onehot - p`, `dH/dz = -p (log p + H)`; p is made anew from z and L."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor, with_entropy: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        logprobs, entropies, sums = (logits.new_zeros(len(logits), dtype=wide) for _ in range(3))
        for rows in _blocks(logits):
            scaled = logits[rows].to(wide) / temperatures[rows, None]
            sums[rows] = scaled.logsumexp(1)
            logprobs[rows] = scaled.gather(1, targets[rows, None])[:, 0] - sums[rows]
            if with_entropy:
                probabilities = (scaled - sums[rows, None]).exp_()
                entropies[rows] = sums[rows] - probabilities.mul_(scaled).sum(1)
        ctx.save_for_backward(logits, targets, temperatures, sums, entropies)
        ctx.with_entropy = with_entropy
        if with_entropy != "grad":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, targets, temperatures, sums, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = gradients
        gradient = torch.empty_like(logits)
        for rows in _blocks(logits):
            logs = (logits[rows].to(sums.dtype) / temperatures[rows, None]).sub_(sums[rows, None])
            probabilities = logs.exp()
            part = probabilities * -of_logprobs[rows, None]
            if ctx.with_entropy == "grad":
                part -= probabilities.mul_(logs.add_(entropies[rows, None])).mul_(of_entropies[rows, None])
            part.scatter_add_(1, targets[rows, None], of_logprobs[rows, None])
            gradient[rows] = part.div_(temperatures[rows, None])
        return gradient, None, None, None


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    size = max(1, BLOCK * (64 if logits.is_cuda else 1) // max(1, logits.shape[1]))
    for start in range(0, len(logits), size):
        yield slice(start, start + size)
