"""Samples -> minibatches -> a grid of micro-batches, the same number on every rank. Pure and deterministic.

A micro-batch holds at most `micro_tokens` tokens (padding counted), but at least one row. Three layouts:

- unpacked: one sample per row, rows sorted by length, padded on the right. A causal model needs no mask for that.
- packed: several samples per row (first-fit decreasing), positions restarting at 0, attention block-diagonal.
- forest: one row without padding, in which samples with a common prefix share its tokens (`tree`). A token that ends a
  prefix predicts one next token per branch, so `sources` may repeat.

Measured on one CPU core (one training step: 128 episodes of 1 to 10 turns of 32 tokens, 18,000 tokens, 0.18M
parameters, 4 optimizer steps): unpacked 0.52 to 0.56 CPU-s, packed 0.64 to 0.73. So unpacked is the default there; the
cuts between micro-batches are chosen to minimise padding plus a fixed cost per forward pass.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from rlctl.train.data.aggregation import aggregate
from rlctl.train.data.samples import TrainSample
from rlctl.train.data.tree import cut, grow

PASS_TOKENS = 256
"""Fixed cost of one forward and backward pass, in tokens."""
CALL_TOKENS = 12
"""Fixed cost of the attention calls of one more sample in a forest, in tokens: measured between 2 (hidden size 256) and
24 (64) on one CPU core."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass takes, as numpy arrays (so that it can be sent to another rank)."""

    token_ids: np.ndarray
    """int64 `[B, S]`"""
    position_ids: np.ndarray
    """int64 `[B, S]`: restart at 0 with each sample of a row."""
    sources: np.ndarray
    """int64 `[N]`: flat index into `[B, S]` of the position that predicts each trainable token."""
    targets: np.ndarray
    """int64 `[N]`"""
    behaviour: np.ndarray
    """float32 `[N]`"""
    advantages: np.ndarray
    """float32 `[N]`"""
    temperatures: np.ndarray
    """float32 `[N]`"""
    weights: np.ndarray
    """float32 `[N]`; all 0 in a filler."""
    sequences: np.ndarray
    """int64 `[N]`: which sample of this micro-batch (0, 1, ...) each token belongs to; a sample is never cut."""
    index: np.ndarray
    """int64 `[N]`: place of the token among the trainable tokens of all samples given to `grid`; -1 in a filler."""
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """float32 `[N]` each: those that every sample has (see `TrainSample.columns`)."""
    packed: bool = False
    """Whether any row holds more than one sample."""
    nodes: np.ndarray | None = None
    """int64 `[n, 3]` of a forest (see `tree.Forest`); B is 1 then."""

    @property
    def area(self) -> int:
        """Tokens computed, padding included."""
        return int(self.token_ids.size)


@dataclass(frozen=True)
class Minibatch:
    """One optimizer step of one rank."""

    micros: list[MicroBatch]
    divisor: float
    """Global count that the loss sum is divided by; the same on every rank."""


def minibatches(samples: Sequence[TrainSample], count: int, seed: Sequence[int]) -> list[list[TrainSample]]:
    """Deal whole trajectories, shuffled by `seed`, into at most `count` minibatches of (nearly) equal size."""
    by_uid: dict[str, list[TrainSample]] = {}
    for sample in samples:
        by_uid.setdefault(sample.uid, []).append(sample)
    uids = list(by_uid)
    order = np.random.default_rng(list(seed)).permutation(len(uids))
    parts = np.array_split(order, max(1, min(count, len(uids))))
    return [[sample for i in part for sample in by_uid[uids[i]]] for part in parts if len(part)]


def grid(
    samples: Sequence[TrainSample],
    ranks: int,
    micro_tokens: int,
    aggregation: str,
    row_tokens: int = 0,
    length: int = 1,
    tree: bool | Literal["auto"] = False,
) -> list[Minibatch]:
    """One minibatch cut for `ranks` ranks: the same number of micro-batches each, balanced by tokens.

    `row_tokens`: capacity of a packed row; 0 = unpacked. `length`: see `aggregation.aggregate`. `tree`: forests instead
    of rows; "auto": where they cost less.
    """
    weights, divisor = aggregate(samples, aggregation, length)
    chunks, cost = _chunks_of_rows(samples, ranks, micro_tokens, row_tokens)
    forests = cut([sample.token_ids for sample in samples], micro_tokens, ranks) if tree else None
    if forests and (
        tree is True or forests.tokens + CALL_TOKENS * len(samples) + PASS_TOKENS * len(forests.runs) < cost
    ):
        groups = _multiple([forests.order[a:b] for a, b in forests.runs], ranks)
        trained = _Trained(samples, weights, [i for group in groups for i in group])
        micros = [trained.forest(group) for group in groups if group]
        micros += [_filler(samples[0], forest=True) for group in groups if not group]
        micros.sort(key=lambda micro: -micro.area)
    else:
        trained = _Trained(samples, weights, [i for chunk in chunks for row in chunk for i in row])
        micros = [trained.rows(chunk) for chunk in chunks if chunk]
        micros += [_filler(samples[0]) for chunk in chunks if not chunk]
    dealt: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for turn in range(0, len(micros), ranks):
        hand = micros[turn : turn + ranks]
        for rank, micro in enumerate(hand if turn // ranks % 2 == 0 else reversed(hand)):
            dealt[rank].append(micro)
    return [Minibatch(mine, divisor) for mine in dealt]


def _chunks_of_rows(
    samples: Sequence[TrainSample], ranks: int, micro_tokens: int, row_tokens: int
) -> tuple[list[list[list[int]]], float]:
    """Micro-batches of rows of sample numbers, the largest first, a multiple of `ranks`; their cost in tokens."""
    rows = _packed_rows(samples, row_tokens) if row_tokens else [[i] for i in range(len(samples))]
    width = [sum(len(samples[i]) for i in row) for row in rows]
    order = sorted(range(len(rows)), key=lambda r: (-width[r], r))
    chunks = [[order[k] for k in range(a, b)] for a, b in cuts([width[r] for r in order], micro_tokens)]
    chunks = _multiple(chunks, ranks)
    areas = [width[chunk[0]] * len(chunk) if chunk else 0 for chunk in chunks]
    largest = sorted(range(len(chunks)), key=lambda c: -areas[c])
    cost = sum(areas) + PASS_TOKENS * sum(map(bool, chunks))
    return [[rows[r] for r in chunks[c]] for c in largest], cost


def cuts(widths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Cut rows sorted by falling width into runs `[a, b)` that minimise `sum(padded area + PASS_TOKENS)`.

    A run's area is `widths[a] * (b - a) <= budget`, except that a run of one row is always allowed. Dynamic
    programme, O(n * rows per run).
    """
    n = len(widths)
    best, cut = [0.0] * (n + 1), [0] * (n + 1)
    for a in range(n - 1, -1, -1):
        width = area = widths[a]
        best[a], cut[a] = area + best[a + 1], a + 1
        for b in range(a + 2, min(n, a + budget // max(1, width)) + 1):
            area += width
            if (cost := area + best[b]) < best[a]:
                best[a], cut[a] = cost, b
        best[a] += PASS_TOKENS
    runs, a = [], 0
    while a < n:
        runs.append((a, cut[a]))
        a = cut[a]
    return runs


def _packed_rows(samples: Sequence[TrainSample], capacity: int) -> list[list[int]]:
    """First-fit decreasing; a sample longer than the capacity has a row to itself."""
    rows: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(samples)), key=lambda i: (-len(samples[i]), i)):
        size = len(samples[i])
        fits = next((r for r, room in enumerate(free) if room >= size), None)
        if fits is None:
            rows.append([])
            free.append(max(capacity, size))
            fits = len(rows) - 1
        rows[fits].append(i)
        free[fits] -= size
    return rows


def _multiple(chunks: list[list[int]], ranks: int) -> list[list[int]]:
    """Split the chunks with most rows, or add empty ones, until there is a multiple of `ranks`."""
    chunks = list(chunks)
    while len(chunks) % ranks:
        largest = max(range(len(chunks)), key=lambda c: len(chunks[c]))
        rows = chunks[largest]
        if len(rows) < 2:
            chunks.append([])
            continue
        chunks[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return chunks


class _Trained:
    """The trained tokens of all samples, one array per column, in an order in which micro-batches take runs of them."""

    def __init__(self, samples: Sequence[TrainSample], weights: np.ndarray, order: Sequence[int]) -> None:
        """`order`: the sample numbers of one micro-batch, those of the next, ..."""
        self.samples = samples
        self.lengths = [len(sample.token_ids) for sample in samples]
        self.counts = np.array([len(sample.places) for sample in samples])
        taken = self.counts[order]
        begins = np.cumsum(taken) - taken
        self.begins = np.empty_like(self.counts)
        self.begins[order] = begins
        given = np.cumsum(self.counts) - self.counts
        self.index = np.repeat(given[order] - begins, taken) + np.arange(int(taken.sum()))
        ordered = [samples[i] for i in order]
        names = set.intersection(*(set(sample.columns) for sample in samples))
        calls = [call for sample in ordered for call in sample.calls]
        self.places = np.concatenate([sample.places for sample in ordered])
        self.arrays: dict[str, np.ndarray] = {
            "targets": np.concatenate([s.token_ids[s.places] for s in ordered], dtype=np.int64),
            "behaviour": np.concatenate([s.logprobs for s in ordered]),
            "advantages": np.concatenate([s.advantages for s in ordered]),
            "temperatures": np.repeat(np.array([c.temperature for c in calls], np.float32), [c.tokens for c in calls]),
            "weights": weights[self.index],
        }
        self.columns = {name: np.concatenate([s.columns[name] for s in ordered]) for name in names}

    def rows(self, rows: Sequence[Sequence[int]]) -> MicroBatch:
        """Rows of sample numbers, padded on the right."""
        width = max([sum([self.lengths[i] for i in row]) for row in rows])
        ids, positions = np.zeros((len(rows), width), np.int64), np.empty((len(rows), width), np.int64)
        positions[:] = np.arange(width)
        offsets = []
        for r, row in enumerate(rows):
            at = 0
            for i in row:
                end = at + self.lengths[i]
                ids[r, at:end] = self.samples[i].token_ids
                if at:
                    positions[r, at:] -= positions[r, at]
                offsets.append(r * width + at)
                at = end
            if len(row) > 1:
                positions[r, at:] = np.arange(width - at)
        numbers = [i for row in rows for i in row]
        run = self._run(numbers)
        sources = self.places[run] + np.repeat(offsets, self.counts[numbers]) - 1
        return self._taken(run, numbers, ids, positions, sources, packed=any(len(row) > 1 for row in rows))

    def forest(self, numbers: Sequence[int]) -> MicroBatch:
        """One row in which common prefixes stand once."""
        made = grow([self.samples[i].token_ids for i in numbers])
        sources = np.concatenate(
            [path[self.samples[i].places - 1] for i, path in zip(numbers, made.places, strict=True)]
        )
        ids, positions = made.token_ids[None], made.position_ids[None]
        packed = len(numbers) > 1
        return self._taken(self._run(numbers), numbers, ids, positions, sources, packed=packed, nodes=made.nodes)

    def _run(self, numbers: Sequence[int]) -> slice:
        """Where the trained tokens of one micro-batch lie in the arrays."""
        begin = int(self.begins[numbers[0]])
        return slice(begin, begin + int(self.counts[numbers].sum()))

    def _taken(
        self,
        run: slice,
        numbers: Sequence[int],
        ids: np.ndarray,
        positions: np.ndarray,
        sources: np.ndarray,
        **layout: Any,
    ) -> MicroBatch:
        shares: dict[str, Any] = {name: values[run] for name, values in self.arrays.items()}
        return MicroBatch(
            ids,
            positions,
            sources,
            **shares,
            sequences=np.repeat(np.arange(len(numbers)), self.counts[numbers]),
            index=self.index[run],
            columns={name: values[run] for name, values in self.columns.items()},
            **layout,
        )


def _filler(sample: TrainSample, forest: bool = False) -> MicroBatch:
    """A micro-batch that costs little and adds exactly nothing, for a rank that has no rows left."""
    short = replace(
        sample,
        token_ids=sample.token_ids[: int(sample.places[0]) + 1],
        places=sample.places[:1],
        logprobs=sample.logprobs[:1],
        advantages=sample.advantages[:1],
        calls=[replace(next(call for call in sample.calls if call.tokens), tokens=1)],
        columns={name: values[:1] for name, values in sample.columns.items()},
    )
    trained = _Trained([short], np.zeros(1, np.float32), [0])
    made = trained.forest([0]) if forest else trained.rows([[0]])
    return dataclasses.replace(made, index=np.full(1, -1))
