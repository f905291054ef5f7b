"""The KV cache: a padded block for the running batch, in which sessions stay parked between their turns, and blocks of
exact size for sessions that had to leave it.

    running   [layers, rows, 2 * kv_heads, length, head_dim]   grows by doubling, rows are reused
    blocks    [layers, 2 * kv_heads, T, head_dim] each         least recently used first out

A turn of a parked session computes its new tokens where the old ones are: nothing is copied. Attention reads plain
contiguous rows (`Run`); memory is counted in tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from rlctl.engines.embedded.sequences import common_prefix

RUN_TOKENS = 400
"""Cached tokens whose attention costs about as much as one more call of it does."""


@dataclass(frozen=True)
class Shape:
    """What a model needs per token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class Run(NamedTuple):
    """Rows that lie one after the other in the cache, so that they are looked at without a copy."""

    start: int
    stop: int
    """Rows `start .. stop-1` of the pass ..."""
    row: int
    """... are rows `row, row + 1, ...` of the cache ..."""
    length: int
    """... and look at this many positions: the largest that counts, plus 1."""


@dataclass(frozen=True)
class Inputs:
    """One forward pass over some rows of the batch."""

    ids: torch.Tensor
    """int64 `[B, n]`."""
    positions: torch.Tensor
    """int64 `[B, n]`: where these tokens stand; each sees the positions up to its own."""
    rows: torch.Tensor
    """int64 `[B]`: rows of the KV cache, ascending."""
    last: torch.Tensor
    """int64 `[B]`: index in 0 .. n-1 of the token whose logits are wanted."""
    runs: list[Run]
    """All of the rows, in order."""

    @property
    def length(self) -> int:
        """Positions that any row looks at."""
        return max(run.length for run in self.runs)


def cut_runs(rows: Sequence[int], lengths: Sequence[int]) -> list[Run]:
    """Cut ascending cache rows into runs: where a row is left out, and where padding the shorter rows of a run to its
    longest would cost more than an attention call more (RUN_TOKENS)."""
    runs = [Run(0, 1, rows[0], lengths[0])]
    for i in range(1, len(rows)):
        start, _, row, longest = runs[-1]
        count, length = i - start, lengths[i]
        padding = (longest - length) if length < longest else count * (length - longest)
        if rows[i] == row + count and padding <= RUN_TOKENS:
            runs[-1] = Run(start, i + 1, row, max(longest, length))
        else:
            runs.append(Run(i, i + 1, rows[i], length))
    return runs


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

    def save(self, row: int, block: torch.Tensor) -> None:
        """Fill `block` with the first tokens of a row."""
        block.copy_(self.data[:, row, :, : block.shape[2]])

    def block(self, tokens: int) -> torch.Tensor:
        """An idle block with room for `tokens`, not filled."""
        s = self.shape
        return torch.empty(s.layers, 2 * s.kv_heads, tokens, s.head_dim, dtype=s.dtype, device=s.device)

    def write(self, layer: int, kv: torch.Tensor, inputs: Inputs) -> None:
        """Store `kv [B, n, 2 * kv_heads, head_dim]` of one layer at the rows and positions of `inputs`."""
        self.data[layer][inputs.rows[:, None], :, inputs.positions] = kv

    def run(self, layer: int, run: Run) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[rows of the run, kv_heads, length, head_dim]`, not copied."""
        seen = self.data[layer, run.row : run.row + run.stop - run.start, :, : run.length]
        return seen[:, : self.shape.kv_heads], seen[:, self.shape.kv_heads :]

    def all(self, layer: int, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[B, kv_heads, length, head_dim]` of all rows of `inputs`."""
        first, rows = inputs.runs[0].row, len(inputs.rows)
        if inputs.runs[-1].row - first + inputs.runs[-1].stop - inputs.runs[-1].start == rows:
            seen = self.data[layer, first : first + rows, :, : inputs.length]
        else:
            seen = self.data[layer, :, :, : inputs.length].index_select(0, inputs.rows)
        return seen[:, : self.shape.kv_heads], seen[:, self.shape.kv_heads :]


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


@dataclass(frozen=True)
class Idle:
    """KV of a session whose last request is over."""

    ids: np.ndarray
    """int32 `[T]`: the tokens this is the KV of."""
    row: int = -1
    """Row of the running block that it is still in; -1: it is in `block`."""
    block: torch.Tensor | None = None
    """`[layers, 2 * kv_heads, T, head_dim]`."""


class Sessions:
    """KV of sessions between two turns: parked in the row where it was computed, so that the next turn copies nothing;
    in a block of its own once the row is needed by others."""

    def __init__(self) -> None:
        self._parked: OrderedDict[str, Idle] = OrderedDict()
        self._blocks: OrderedDict[str, Idle] = OrderedDict()
        self.tokens = 0
        """In blocks."""

    def __len__(self) -> int:
        return len(self._parked) + len(self._blocks)

    @property
    def parked(self) -> int:
        """Rows that are kept for sessions."""
        return len(self._parked)

    @property
    def longest(self) -> int:
        """Tokens of the longest session in a row."""
        return max((len(idle.ids) for idle in self._parked.values()), default=0)

    def take(self, session: str, prompt: np.ndarray) -> tuple[Idle | None, int]:
        """What is there for this session, no longer kept here, and how many leading tokens of `prompt` it covers.

        At least the last prompt token is left to compute: its logits are what is sampled from.
        """
        idle = self._parked.pop(session, None)
        if idle is None:
            idle = self._blocks.pop(session, None)
            if idle is None:
                return None, 0
            self.tokens -= len(idle.ids)
        return idle, min(common_prefix(idle.ids, prompt), len(prompt) - 1)

    def park(self, session: str, ids: np.ndarray, row: int) -> int:
        """Keep the KV of `ids` in its row; returns the row that this session had before and no longer needs, or -1."""
        old, _ = self.take(session, ids)
        self._parked[session] = Idle(ids, row)
        return old.row if old else -1

    def release(self, running: Running, budget: int) -> int:
        """Free the row that was parked first, its KV moved to a block if that fits into `budget` tokens of blocks."""
        session, idle = self._parked.popitem(last=False)
        if len(idle.ids) <= budget:
            self.shrink(budget - len(idle.ids))
            block = running.block(len(idle.ids))
            running.save(idle.row, block)
            self._blocks[session] = Idle(idle.ids, block=block)
            self.tokens += len(idle.ids)
        return idle.row

    def shrink(self, budget: int) -> None:
        """Forget the sessions in blocks that were used longest ago until `budget` tokens are enough."""
        while self._blocks and self.tokens > budget:
            _, old = self._blocks.popitem(last=False)
            self.tokens -= len(old.ids)

    def clear(self) -> None:
        self._parked.clear()
        self._blocks.clear()
        self.tokens = 0
