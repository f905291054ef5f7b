"""The running rows as arrays, so that a decode step touches no Python object per row unless something happens there."""

from collections.abc import Iterable

import numpy as np
import torch

from rlctl.engines.embedded.sampler import Settings
from rlctl.engines.embedded.sequences import Sequence

SHARE_TOKENS = 16
"""Shorter prompts cost less to compute again than a pass of their own does."""


class Batch:
    """Rows 0, 1, ... of the KV cache: with a sequence, parked for a session (see `kv.Sessions`), or free."""

    def __init__(self, max_rows: int, seed: int) -> None:
        self.rows: list[Sequence | None] = []
        self._parked: set[int] = set()
        self.max_rows = max_rows
        self.token = np.zeros(max_rows, np.int64)
        """The last token of each row, whose KV is still to be computed."""
        self.position = np.zeros(max_rows, np.int64)
        """Where that token stands: tokens before it."""
        self._temperature = np.ones(max_rows, np.float32)
        self._top_p = np.ones(max_rows, np.float32)
        self._top_k = np.zeros(max_rows, np.int64)
        self._min_p = np.zeros(max_rows, np.float32)
        self._filtered = np.zeros(max_rows, bool)
        self._seeded: dict[int, np.random.Generator] = {}
        self._draws = np.random.default_rng(seed)

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for sequence in self.rows if sequence is not None]

    @property
    def size(self) -> int:
        """Sequences."""
        return len(self.rows) - self.rows.count(None)

    @property
    def free(self) -> int:
        """Rows that can be taken now, those that are parked included."""
        return self.max_rows - self.size

    @property
    def active(self) -> np.ndarray:
        """Rows with a sequence, ascending."""
        return np.array([row for row, sequence in enumerate(self.rows) if sequence is not None], np.int64)

    def hole(self) -> int:
        """A free row before the last; -1 when there is none."""
        free = (row for row, one in enumerate(self.rows) if one is None and row not in self._parked)
        return next(free, -1)

    def join(self, sequence: Sequence, row: int) -> None:
        """Give the sequence a row: a free one, one that was kept for its session, or the next after the last."""
        if row == len(self.rows):
            self.rows.append(sequence)
        else:
            self._parked.discard(row)
            self.rows[row] = sequence
        sampling = sequence.sampling
        sequence.row = row
        self._temperature[row] = sampling.temperature
        self._top_p[row] = sampling.top_p
        self._top_k[row] = sampling.top_k
        self._min_p[row] = sampling.min_p
        self._filtered[row] = sampling.filtered
        if sampling.seed is not None:
            sequence.draws = sequence.draws or np.random.default_rng(sampling.seed)
            self._seeded[row] = sequence.draws

    def leave(self, sequence: Sequence, parked: bool = False) -> None:
        """Free the sequence's row, or park it."""
        row, sequence.row = sequence.row, -1
        self.rows[row] = None
        self.token[row] = self.position[row] = 0
        self._temperature[row] = 1.0
        self._filtered[row] = False
        self._seeded.pop(row, None)
        if parked:
            self._parked.add(row)
        else:
            self.unpark(row)

    def unpark(self, *rows: int) -> None:
        """These rows are free; free rows at the end go."""
        self._parked.difference_update(rows)
        while self.rows and self.rows[-1] is None and len(self.rows) - 1 not in self._parked:
            self.rows.pop()

    def settings(self, rows: np.ndarray, device: torch.device) -> Settings:
        """Sampling settings of `rows [B]`."""

        def moved(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values[rows]).to(device)

        cut = np.flatnonzero(self._filtered[rows])
        return Settings(
            moved(self._temperature),
            moved(self._top_p),
            moved(self._top_k),
            moved(self._min_p),
            torch.from_numpy(cut).to(device) if len(cut) else None,
            bool((self._temperature[rows] == 1).all()),
        )

    def uniform(self, rows: np.ndarray) -> np.ndarray:
        """One number in [0, 1) per row, float64 `[B]`; a row with a seed draws from its own stream."""
        drawn = self._draws.random(len(rows))
        if self._seeded:
            for i, row in enumerate(rows):
                if (own := self._seeded.get(int(row))) is not None:
                    drawn[i] = own.random()
        return drawn


def same_prompts(
    pending: Iterable[tuple[Sequence, int]],
) -> tuple[list[tuple[Sequence, int]], list[tuple[Sequence, int]]]:
    """Split (sequence, new tokens) into those to compute and those that wait for another one's result.

    Of several new sequences with one prompt (the rollouts of a group, the choices of one request) only the first is
    computed; the others are given as (sequence, row of the first).
    """
    leaders, followers = [], []
    rows: dict[bytes, int] = {}
    for sequence, tokens in pending:
        first = sequence.row
        if not sequence.response and tokens >= SHARE_TOKENS:
            first = rows.setdefault(sequence.prompt.tobytes(), sequence.row)
        if first == sequence.row:
            leaders.append((sequence, tokens))
        else:
            followers.append((sequence, first))
    return leaders, followers


def padded_groups(pending: Iterable[tuple[Sequence, int]], budget: int) -> list[list[Sequence]]:
    """Cut (sequence, new tokens) into groups whose padded size stays within `budget` tokens, similar lengths together.

    A sequence that is longer than the budget on its own makes a group of one.
    """
    groups: list[list[Sequence]] = []
    longest = 0
    for sequence, tokens in sorted(pending, key=lambda item: -item[1]):
        if groups and (len(groups[-1]) + 1) * longest <= budget and 2 * tokens >= longest:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
            longest = tokens
    return groups
