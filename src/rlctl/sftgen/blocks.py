"""Which seeds are played next, and how many at a time.

Blocks grow until one takes BLOCK_S, so that neither the way through a pipe nor a block nobody waits for costs much, and
become small towards the end, so that all end together. Their size changes nothing in what is written.
"""

from rlctl.sftgen.rows import Block
from rlctl.sftgen.sink import Sink

BLOCK_S = 0.05
FIRST, LARGEST = 8, 512
"""Seeds of the first and of the largest block."""
SMALLER = 32
"""How many times smaller than others the last blocks may be."""


class Blocks:
    """Makes the blocks: consecutive from `first` up to (not including) `end`, for `workers`."""

    def __init__(self, first: int, end: int | None, sink: Sink, workers: int) -> None:
        self._next, self._end, self._sink, self._workers = first, end, sink, workers
        self._size = FIRST
        self._out = self._back = 0
        """Seeds given out and not taken yet; those of them that are played."""

    def next(self, has: int = 0) -> Block | None:
        """None where no seeds are left, no split is open, or a worker `has` its share of the seeds still due."""
        due = self._sink.seeds_due()
        size = min(self._size, max(1, self._size // SMALLER, (due - self._out) // (2 * self._workers)))
        left = size if self._end is None else min(size, self._end - self._next)
        if left <= 0 or has * self._workers > max(due - self._back, 0) or not (splits := self._sink.open_splits()):
            return None
        block = Block(self._next, left, splits)
        self._next += left
        self._out += left
        return block

    def played(self, seeds: int, seconds: float) -> None:
        """A block is back: fit the size of those to come."""
        self._back += seeds
        fitting = int(BLOCK_S * seeds / max(seconds, 1e-6))
        self._size = max(1, min(LARGEST, fitting, 2 * self._size))

    def taken(self, seeds: int) -> None:
        """The sink knows of them."""
        self._back -= seeds
        self._out -= seeds
