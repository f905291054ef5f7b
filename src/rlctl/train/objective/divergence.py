"""Distances between policy and reference, per token. One order of arguments everywhere: (policy, reference).

The estimators work on tokens sampled from the policy, `x = log policy - log reference`; all estimate
KL(policy || reference) except `abs`. Source: J. Schulman, "Approximating KL Divergence", 2020.
"""

from collections.abc import Callable

import torch


def k1(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`x`: unbiased, of high variance; its expected gradient as a loss is zero. `[N], [N] -> [N]`."""
    return policy - reference


def absolute(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`|x|`"""
    return (policy - reference).abs()


def k2(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`x^2 / 2`: biased, but on policy its gradient is that of KL(policy || reference)."""
    return 0.5 * (policy - reference).square()


def k3(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`exp(-x) - 1 + x`: unbiased and never negative."""
    difference = reference - policy
    return difference.expm1() - difference


def full(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """`sum_v p_v (log p_v - log q_v)`, exact: log-probabilities `[N, V], [N, V] -> [N]`."""
    return (policy.exp() * (policy - reference)).sum(-1)


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k1": k1,
    "abs": absolute,
    "k2": k2,
    "k3": k3,
}
