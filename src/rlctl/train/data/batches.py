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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

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
    starts = np.cumsum([0] + [sample.trainable for sample in samples])
    cells = [
        _Cell(sample, np.broadcast_to(np.asarray(weight, np.float32), sample.trainable), int(start))
        for sample, weight, start in zip(samples, weights, starts, strict=False)
    ]
    chunks, cost = _chunks_of_rows(samples, ranks, micro_tokens, row_tokens)
    forests = cut([sample.token_ids for sample in samples], micro_tokens, ranks) if tree else None
    if forests and (
        tree is True or forests.tokens + CALL_TOKENS * len(samples) + PASS_TOKENS * len(forests.runs) < cost
    ):
        groups = _multiple([forests.order[a:b] for a, b in forests.runs], ranks)
        micros = [_forest([cells[i] for i in group]) for group in groups if group]
        micros += [_filler(samples[0], forest=True) for group in groups if not group]
        micros.sort(key=lambda micro: -micro.area)
    else:
        micros = [_micro([[cells[i] for i in row] for row in chunk]) for chunk in chunks if chunk]
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
        best[a] = float("inf")
        for b in range(a + 1, n + 1):
            area = widths[a] * (b - a)
            if area > budget and b > a + 1:
                break
            if (cost := area + PASS_TOKENS + best[b]) < best[a]:
                best[a], cut[a] = cost, b
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


@dataclass(frozen=True)
class _Cell:
    """A sample in its place."""

    sample: TrainSample
    weights: np.ndarray
    """float32 `[trainable]`"""
    start: int
    """Index of its first trainable token; -1: a filler's."""


def _micro(rows: Sequence[Sequence[_Cell]]) -> MicroBatch:
    width = max(sum(len(cell.sample) for cell in row) for row in rows)
    ids, positions = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    placed: list[tuple[_Cell, np.ndarray]] = []
    for r, row in enumerate(rows):
        at = 0
        for cell in row:
            sample = cell.sample
            end = at + len(sample)
            ids[r, at:end] = sample.token_ids
            positions[r, at:end] = np.arange(len(sample))
            placed.append((cell, np.arange(r * width + at, r * width + end)))
            at = end
        start = len(row[-1].sample) if len(row) == 1 else 0
        positions[r, at:] = np.arange(start, start + width - at)
    return _assembled(ids, positions, placed, packed=any(len(row) > 1 for row in rows))


def _forest(cells: Sequence[_Cell]) -> MicroBatch:
    made = grow([cell.sample.token_ids for cell in cells])
    placed = list(zip(cells, made.places, strict=True))
    return _assembled(made.token_ids[None], made.position_ids[None], placed, packed=len(cells) > 1, nodes=made.nodes)


def _assembled(
    ids: np.ndarray, positions: np.ndarray, placed: Sequence[tuple[_Cell, np.ndarray]], **layout: Any
) -> MicroBatch:
    """`placed`: samples, each with the flat place of every token of it."""
    names = set.intersection(*(set(cell.sample.columns) for cell, _ in placed))
    fields: dict[str, list[np.ndarray]] = {}
    for number, (cell, places) in enumerate(placed):
        where = np.flatnonzero(cell.sample.loss_mask)
        for name, values in _columns(cell, where, number, names).items():
            fields.setdefault(name, []).append(values)
        fields.setdefault("sources", []).append(places[where - 1])
    flat: dict[str, Any] = {name: np.concatenate(values) for name, values in fields.items()}
    columns = {name: flat.pop(f"column {name}") for name in names}
    return MicroBatch(ids, positions, **flat, columns=columns, **layout)


def _columns(cell: _Cell, where: np.ndarray, number: int, names: set[str]) -> dict[str, np.ndarray]:
    """What a micro-batch holds of each trainable token of one sample."""
    sample = cell.sample
    return {
        "targets": sample.token_ids[where].astype(np.int64),
        "behaviour": sample.logprobs[where],
        "advantages": sample.advantages[where],
        "temperatures": sample.temperatures[where],
        "weights": cell.weights,
        "sequences": np.full(len(where), number, np.int64),
        "index": np.arange(len(where)) + cell.start if cell.start >= 0 else np.full(len(where), -1, np.int64),
        **{f"column {name}": sample.columns[name][where] for name in names},
    }


def _filler(sample: TrainSample, forest: bool = False) -> MicroBatch:
    """A micro-batch that costs little and adds exactly nothing, for a rank that has no rows left."""
    cut = int(np.flatnonzero(sample.loss_mask)[0]) + 1
    arrays = ("token_ids", "loss_mask", "logprobs", "versions", "temperatures", "advantages", "turns")
    short = replace(
        sample,
        **{name: getattr(sample, name)[:cut] for name in arrays},
        columns={name: values[:cut] for name, values in sample.columns.items()},
    )
    cell = _Cell(short, np.zeros(1, np.float32), -1)
    return _forest([cell]) if forest else _micro([[cell]])
