"""FrozenLake, solved: distances by breadth-first search on dry ice, value iteration on slippery ice.

Cells are numbered row-major; a set of cells is one int with bit `cell` set. Actions as gymnasium's:
0 left, 1 down, 2 right, 3 up. A move over the border stays where it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlctl.solvers.chances import Table

DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass(frozen=True, slots=True)
class Lake:
    """A square map."""

    size: int
    holes: int
    """Bit set of cells."""
    start: int
    goal: int

    @property
    def rows(self) -> list[str]:
        """As gymnasium writes it: S start, F frozen, H hole, G goal."""
        cells = ["H" if self.holes >> i & 1 else "F" for i in range(self.size**2)]
        cells[self.start], cells[self.goal] = "S", "G"
        return ["".join(cells[i : i + self.size]) for i in range(0, self.size**2, self.size)]


def neighbours(size: int) -> list[tuple[int, int, int, int]]:
    """Cell after each action from each cell: [size**2][4]."""
    table = []
    for row in range(size):
        for col in range(size):
            left, down, right, up = (
                min(max(row + dr, 0), size - 1) * size + min(max(col + dc, 0), size - 1) for dr, dc in DELTAS
            )
            table.append((left, down, right, up))
    return table


def spreader(size: int) -> Callable[[int], int]:
    """The function that adds to a set of cells all 4-neighbours."""
    full = (1 << size * size) - 1
    first = sum(1 << row * size for row in range(size))
    not_first, not_last = full ^ first, full ^ (first << size - 1)

    def spread(cells: int) -> int:
        return (
            cells
            | (cells << size & full)
            | cells >> size
            | (cells & not_last) << 1
            | (cells & not_first) >> 1
        )  # fmt: skip

    return spread


def connected(spread: Callable[[int], int], free: int, start: int, goal: int) -> bool:
    """Whether `goal` can be reached from `start` over the cells `free` (both included)."""
    reached, wanted = 1 << start, 1 << goal
    while not reached & wanted:
        grown = spread(reached) & free
        if grown == reached:
            return False
        reached = grown
    return True


def distances(lake: Lake, after: list[tuple[int, int, int, int]]) -> list[int]:
    """Moves from every cell to the goal over ice that does not slip; -1 where there is no way (holes too)."""
    found = [-1] * lake.size**2
    found[lake.goal] = 0
    queue = [lake.goal]
    for cell in queue:
        for other in after[cell]:  # a move and its opposite join the same two cells, so this is also the way back
            if found[other] < 0 and not lake.holes >> other & 1:
                found[other] = found[cell] + 1
                queue.append(other)
    return found


def table(lake: Lake, after: list[tuple[int, int, int, int]], success_rate: float) -> Table:
    """The lake as a finite world; branches: turned left of the intended direction, intended, turned right.

    `success_rate` is the probability of the intended direction, the rest is split over both others (gymnasium 1.2).
    """
    cells = lake.size**2
    absorbing = np.array([cell == lake.goal or bool(lake.holes >> cell & 1) for cell in range(cells)])
    turns = np.array([[(action - 1) % 4, action, (action + 1) % 4] for action in range(4)])
    moved = np.array(after)[:, turns]
    moved[absorbing] = np.arange(cells)[absorbing, None, None]
    slip = (1 - success_rate) / 2
    return Table(moved, np.array([[slip, success_rate, slip]]), np.arange(cells) == lake.goal, absorbing)
