"""What a loss knows about the trainable tokens of a micro-batch, and sums over their sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

Sums = dict[str, torch.Tensor]
"""Detached scalars, to be added up over micro-batches and ranks; keys that begin with `max_` are maxima instead."""


@dataclass(frozen=True)
class Tokens:
    """Tensors `[N]`."""

    behaviour: torch.Tensor
    """float32: log-probability under the policy that sampled the token."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Share of the token in the global sum."""
    sequences: torch.Tensor | None = None
    """int64: number of the sample it belongs to; None: all belong to one."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """See `TrainSample.columns`."""
    divergence: torch.Tensor | None = None
    """KL over the whole vocabulary, with gradient, when it was asked for."""

    @property
    def real(self) -> torch.Tensor:
        """bool: not a filler's."""
        return self.weights > 0


def sums_of_sequences(values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Each token gets the sum over its sequence: `[N] -> [N]`."""
    if tokens.sequences is None:
        return values.sum().expand(len(values))
    count = int(tokens.sequences.max()) + 1 if len(values) else 0
    return values.new_zeros(count).index_add(0, tokens.sequences, values)[tokens.sequences]


def means_of_sequences(values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Each token gets the mean over its sequence: `[N] -> [N]`."""
    return sums_of_sequences(values, tokens) / sums_of_sequences(torch.ones_like(values), tokens)


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
