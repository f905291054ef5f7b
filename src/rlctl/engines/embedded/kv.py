"""The KV cache: a padded block for the running batch, and exact-size blocks for sessions between their turns.

    running   [layers, rows, 2 * kv_heads, length, head_dim]   grows by doubling, rows are reused
    idle      [layers, 2 * kv_heads, room, head_dim] each      least recently used first out

A turn copies its session's block in, computes only the new tokens, and appends them to the block at its end: one copy
of the context per turn, in exchange for attention over plain contiguous rows and memory counted in tokens.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from rlctl.engines.embedded.sequences import common_prefix

GROWTH_PERCENT = 150
"""Room of a new idle block, relative to what it holds."""


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
    first: int | None
    """The first of `rows` where they follow one another, so that the cache can be looked at without a copy."""


class Running:
    """KV of the running batch; head `h < kv_heads` of dimension 2 is a key head, the rest are value heads."""

    def __init__(self, shape: Shape, budget: int, rows: int = 8, length: int = 64) -> None:
        self.shape = shape
        self.budget = budget
        """Tokens that this block is to stay within, as far as what it holds allows."""
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
        """Make room for `rows` rows of `length` tokens; what is in use must lie within these, and is kept."""
        have_rows, have_length = self.data.shape[1], self.data.shape[3]
        if rows <= have_rows and length <= have_length:
            return
        old = self.data
        more_rows, more_length = max(have_rows, _power_of_two(rows)), max(have_length, _power_of_two(length))
        if more_rows * more_length > self.budget:
            more_rows, more_length = rows, length
        self.data = self._zeros(more_rows, more_length)
        kept_rows, kept_length = min(have_rows, rows), min(have_length, length)
        self.data[:, :kept_rows, :, :kept_length] = old[:, :kept_rows, :, :kept_length]

    def share(self, source: int, row: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of row `source` to `row`."""
        self.data[:, row, :, :tokens] = self.data[:, source, :, :tokens]

    def load(self, row: int, block: torch.Tensor, tokens: int) -> None:
        self.data[:, row, :, :tokens] = block[:, :, :tokens]

    def save(self, row: int, block: torch.Tensor, start: int, stop: int) -> None:
        """Copy tokens `start:stop` of a row to the same places of `block`."""
        block[:, :, start:stop] = self.data[:, row, :, start:stop]

    def block(self, tokens: int) -> torch.Tensor:
        """An idle block with room for `tokens`, not filled."""
        s = self.shape
        return torch.empty(s.layers, 2 * s.kv_heads, tokens, s.head_dim, dtype=s.dtype, device=s.device)

    def write(self, layer: int, kv: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `kv [B, n, 2 * kv_heads, head_dim]` of one layer at the rows and positions of `inputs`.

        Returns keys and values `[B, kv_heads, length, head_dim]` of these rows.
        """
        block = self.data[layer]
        block[inputs.rows[:, None], :, inputs.positions] = kv
        if inputs.first is not None:
            seen = block[inputs.first : inputs.first + len(inputs.rows), :, : inputs.length]
        else:
            seen = block[:, :, : inputs.length].index_select(0, inputs.rows)
        return seen[:, : self.shape.kv_heads], seen[:, self.shape.kv_heads :]


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


@dataclass(frozen=True)
class Idle:
    """KV of a session whose last request is over."""

    ids: np.ndarray
    """int32 `[T]`: the tokens this is the KV of."""
    block: torch.Tensor
    """Room for T or more tokens, so that the next turn is appended."""

    @property
    def room(self) -> int:
        return self.block.shape[2]


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

    def keep(self, session: str, ids: np.ndarray, running: Running, row: int, budget: int) -> None:
        """Keep the KV of `ids`, which is in a row of the running batch, for the session's next turn."""
        old = self._idle.pop(session, None)
        self.tokens -= old.room if old else 0
        if len(ids) > budget:
            return
        if old is not None and old.room >= len(ids):
            block, there = old.block, common_prefix(old.ids, ids)
        else:
            block, there = running.block(min(len(ids) * GROWTH_PERCENT // 100, budget)), 0
        running.save(row, block, there, len(ids))
        self._idle[session] = Idle(ids, block)
        self.tokens += block.shape[2]
        self.shrink(budget)

    def shrink(self, budget: int) -> None:
        """Forget the least recently used sessions until `budget` tokens are enough."""
        while self._idle and self.tokens > budget:
            _, old = self._idle.popitem(last=False)
            self.tokens -= old.room

    def clear(self) -> None:
        self._idle.clear()
        self.tokens = 0
