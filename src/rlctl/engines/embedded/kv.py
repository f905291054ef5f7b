"""The KV cache: a padded block for the running batch, and exact-size blocks for sessions between their turns.

    running   [layers, rows, 2 * kv_heads, length, head_dim]   grows by doubling, rows are reused
    idle      [layers, 2 * kv_heads, tokens, head_dim] each    least recently used first out

A turn copies its session's block in, computes only the new tokens, and copies the whole out at its end: two copies of
the context per turn, in exchange for attention over plain contiguous rows and memory counted in tokens.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from rlctl.engines.embedded.sequences import common_prefix


@dataclass(frozen=True)
class Shape:
    """What a model needs per token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Inputs:
    """One forward pass over some rows of the batch."""

    ids: torch.Tensor
    """int64 `[B, n]`."""
    positions: torch.Tensor
    """int64 `[B, n]`: where these tokens stand; each sees the positions up to its own."""
    rows: torch.Tensor
    """int64 `[B]`: rows of the KV cache."""
    last: torch.Tensor
    """int64 `[B]`: index in 0 .. n-1 of the token whose logits are wanted."""
    length: int
    """Positions that are looked at: the largest one that counts, plus 1."""
    dense: bool
    """Whether `rows` are 0 .. B-1, so that the cache can be looked at without a copy."""


class Running:
    """KV of the running batch; head `h < kv_heads` of dimension 2 is a key head, the rest are value heads."""

    def __init__(self, shape: Shape, rows: int = 8, length: int = 64) -> None:
        self.shape = shape
        self.data = self._zeros(rows, length)

    def _zeros(self, rows: int, length: int) -> torch.Tensor:
        """Zeros, not garbage: masked positions have weight 0, and 0 * NaN would be NaN."""
        s = self.shape
        return torch.zeros(s.layers, rows, 2 * s.kv_heads, length, s.head_dim, dtype=s.dtype, device=s.device)

    @property
    def tokens(self) -> int:
        """Tokens this block has room for."""
        return self.data.shape[1] * self.data.shape[3]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens, keeping what is there."""
        have_rows, have_length = self.data.shape[1], self.data.shape[3]
        if rows <= have_rows and length <= have_length:
            return
        old = self.data
        self.data = self._zeros(_grown(have_rows, rows), _grown(have_length, length))
        self.data[:, :have_rows, :, :have_length] = old

    def load(self, row: int, block: torch.Tensor, tokens: int) -> None:
        self.data[:, row, :, :tokens] = block[:, :, :tokens]

    def save(self, row: int, tokens: int) -> torch.Tensor:
        return self.data[:, row, :, :tokens].clone()

    def write(self, layer: int, kv: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `kv [B, n, 2 * kv_heads, head_dim]` of one layer at the rows and positions of `inputs`.

        Returns keys and values `[B, kv_heads, length, head_dim]` of these rows.
        """
        block = self.data[layer]
        block[inputs.rows[:, None], :, inputs.positions] = kv
        if inputs.dense:
            seen = block[: len(inputs.rows), :, : inputs.length]
        else:
            seen = block[:, :, : inputs.length].index_select(0, inputs.rows)
        return seen[:, : self.shape.kv_heads], seen[:, self.shape.kv_heads :]


def _grown(have: int, need: int) -> int:
    while have < need:
        have *= 2
    return have


@dataclass(frozen=True)
class Idle:
    """KV of a session whose last request is over."""

    ids: np.ndarray
    """int32 `[T]`: the tokens this is the KV of."""
    block: torch.Tensor


class Sessions:
    """Idle KV by session, at most `budget` tokens in all."""

    def __init__(self) -> None:
        self._idle: OrderedDict[str, Idle] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._idle)

    def find(self, session: str, prompt: np.ndarray) -> tuple[Idle | None, int]:
        """What is there for this session, and how many leading tokens of `prompt` it covers.

        At least the last prompt token is left to compute: its logits are what is sampled from.
        """
        idle = self._idle.get(session)
        if idle is None:
            return None, 0
        self._idle.move_to_end(session)
        return idle, min(common_prefix(idle.ids, prompt), len(prompt) - 1)

    def put(self, session: str, idle: Idle, budget: int) -> None:
        """Keep the newest KV of a session."""
        if len(idle.ids) > budget:
            return
        if (old := self._idle.pop(session, None)) is not None:
            self.tokens -= len(old.ids)
        self._idle[session] = idle
        self.tokens += len(idle.ids)
        self.shrink(budget)

    def shrink(self, budget: int) -> None:
        """Forget the least recently used sessions until `budget` tokens are enough."""
        while self._idle and self.tokens > budget:
            _, old = self._idle.popitem(last=False)
            self.tokens -= len(old.ids)

    def clear(self) -> None:
        self._idle.clear()
        self.tokens = 0
