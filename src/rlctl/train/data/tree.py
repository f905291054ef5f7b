"""Token sequences -> a forest in which every shared prefix stands once. Pure.

    A  p q r a b             p q r --+-- a b           row:    p q r a b c d e
    B  p q r c d      --->           +-- c d --- e     nodes:  [0,3) [3,5) [5,7) [7,8)
    C  p q r c d e                                     ends:    8     5     8     8

The nodes lie one after another in preorder, so the tokens of a subtree are contiguous: a node's tokens are `[start,
stop)`, those of its descendants `[stop, end)`. Hence what a token may attend to needs one number per token: key k is
visible to query q when `k <= q < end of k's node`. Sequences that share nothing are roots of their own, so a forest is
also a packed row without padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

BLOCK = 8
"""Prefixes are shared in whole blocks of so many tokens: a branch costs a call of its own, a few tokens do not."""


@dataclass(frozen=True)
class Forest:
    """Sequences merged into one row of T tokens."""

    token_ids: np.ndarray
    """int64 `[T]`"""
    position_ids: np.ndarray
    """int64 `[T]`: place in the sequence, the same for all that share the token."""
    nodes: np.ndarray
    """int64 `[n, 3]`: start, stop, end (see above), in preorder."""
    places: list[np.ndarray]
    """int64 `[length]` of every sequence: where each of its tokens lies in the row."""


def grow(sequences: Sequence[np.ndarray], block: int = BLOCK) -> Forest:
    """The forest of non-empty sequences of token ids, in O(T log n).

    Of the prefix that two sequences have in common, all whole blocks are shared and nothing else.
    """
    order = ordered(sequences)
    common = _common(sequences, order, block)
    paths: list[list[np.ndarray]] = [[] for _ in order]
    ids: list[np.ndarray] = []
    spans: list[tuple[int, int, int]] = []
    at, stack = 0, [(0, len(order), 0, -1)]
    while stack:
        first, last, begin, parent = stack.pop()
        depth = min(common[first + 1 : last], default=len(sequences[order[first]]))
        if depth > begin:
            ids.append(sequences[order[first]][begin:depth])
            place = np.arange(at, at + depth - begin)
            for path in paths[first:last]:
                path.append(place)
            spans.append((at, at + depth - begin, parent))
            at, parent = at + depth - begin, len(spans) - 1
        while first < last and len(sequences[order[first]]) == depth:
            first += 1
        borders = [first, *(i for i in range(first + 1, last) if common[i] <= depth), last]
        runs = list(pairwise(borders)) if first < last else []
        stack += [(a, b, depth, parent) for a, b in reversed(runs)]
    return _forest(ids, spans, paths, order)


def _common(sequences: Sequence[np.ndarray], order: Sequence[int], block: int) -> list[int]:
    """What each sequence shares with the one before it in order, in whole blocks; 0 for the first."""
    return [0] + [shared(sequences[a], sequences[b]) // block * block for a, b in pairwise(order)]


def _forest(
    ids: list[np.ndarray], spans: list[tuple[int, int, int]], paths: list[list[np.ndarray]], order: Sequence[int]
) -> Forest:
    ends = [stop for _, stop, _ in spans]
    for number in range(len(spans) - 1, -1, -1):
        if (parent := spans[number][2]) >= 0:
            ends[parent] = max(ends[parent], ends[number])
    places: list[np.ndarray] = [np.zeros(0, np.int64)] * len(order)
    positions = np.zeros(spans[-1][1] if spans else 0, np.int64)
    for i, path in zip(order, paths, strict=True):
        places[i] = np.concatenate(path)
        positions[places[i]] = np.arange(len(places[i]))
    nodes = np.array([(start, stop, end) for (start, stop, _), end in zip(spans, ends, strict=True)], np.int64)
    return Forest(np.concatenate(ids).astype(np.int64), positions, nodes.reshape(-1, 3), places)


def ordered(sequences: Sequence[np.ndarray]) -> list[int]:
    """Indices in lexicographic order: of all sequences, those next to one another share most."""
    return sorted(range(len(sequences)), key=lambda i: (sequences[i].astype(">u4").tobytes(), i))


def shared(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    n = min(len(one), len(other))
    differing = np.flatnonzero(one[:n] != other[:n])
    return int(differing[0]) if len(differing) else n


@dataclass(frozen=True)
class Cut:
    """Sequences in lexicographic order, cut into runs that each become one forest."""

    order: list[int]
    runs: list[tuple[int, int]]
    """`[a, b)` in `order`."""
    tokens: int
    """Tokens computed, prefixes that a cut makes anew included."""


def cut(sequences: Sequence[np.ndarray], budget: int, ranks: int, block: int = BLOCK) -> Cut:
    """At most a multiple of `ranks` runs, as few as `budget` tokens each allow, the largest as small as possible.

    A budget below the longest sequence is raised to it. Adding a sequence to a run costs what it does not share with
    the one before it.
    """
    order = ordered(sequences)
    lengths = [len(sequences[i]) for i in order]
    saved = _common(sequences, order, block)
    budget = max(budget, max(lengths))
    count = -(-len(_greedy(lengths, saved, budget)) // ranks) * ranks
    low, high = max(lengths), budget
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(lengths, saved, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    runs = _greedy(lengths, saved, high)
    tokens = sum(sum(lengths[a:b]) - sum(saved[a + 1 : b]) for a, b in runs)
    return Cut(order, runs, tokens)


def _greedy(lengths: Sequence[int], saved: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Runs as long as the budget allows, from left to right."""
    starts, room = [0], budget - lengths[0]
    for i in range(1, len(lengths)):
        need = lengths[i] - saved[i]
        if need > room:
            starts.append(i)
            need, room = lengths[i], budget
        room -= need
    return list(zip(starts, [*starts[1:], len(lengths)], strict=True))
