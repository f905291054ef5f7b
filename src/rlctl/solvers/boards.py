"""Sokoban boards as bit sets, and the geometry that moves them.

Cells of a rows x cols board are numbered row-major; a set of cells is one int. The border is wall, so shifting a set
of inner cells by one move never wraps round. Actions: 0 up, 1 down, 2 left, 3 right (gym-sokoban's 1 to 4).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

SYMBOLS = "#_O√XPS"
"""wall, floor, target, box on target, box, player, player on target: RAGEN's characters for the codes 0 to 6."""


@dataclass(frozen=True)
class Geometry:
    """What depends on the board's size only."""

    rows: int
    cols: int

    @property
    def cells(self) -> int:
        return self.rows * self.cols

    @cached_property
    def deltas(self) -> tuple[int, int, int, int]:
        """Change of the cell number by each action."""
        return (-self.cols, self.cols, -1, 1)

    @cached_property
    def inner(self) -> int:
        """All cells but the border."""
        row = (1 << self.cols - 2) - 1
        return sum(row << r * self.cols + 1 for r in range(1, self.rows - 1))

    @cached_property
    def pushed(self) -> tuple[int, int, int, int]:
        """For each action the pairs "player at p, box at p + delta", as bits (p + delta) * cells + p."""
        n = self.cells
        return tuple(sum(1 << (p + d) * n + p for p in bits(self.inner)) for d in self.deltas)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Room:
    """One situation: where the floor is (targets are floor too), and what stands on it."""

    geometry: Geometry
    floor: int
    targets: int
    boxes: int
    player: int
    """A cell number."""

    def text(self) -> str:
        """Rows joined by newlines, one character per cell."""
        geometry = self.geometry
        return paint(sketch(geometry, self.floor, self.targets), geometry, self.targets, self.boxes, self.player)


def bits(cells: int) -> Iterator[int]:
    """Cell numbers of a set, ascending."""
    while cells:
        low = cells & -cells
        yield low.bit_length() - 1
        cells ^= low


def shift(cells: int, delta: int) -> int:
    """The set moved by `delta` cells."""
    return cells << delta if delta >= 0 else cells >> -delta


def sketch(geometry: Geometry, floor: int, targets: int) -> list[str]:
    """The fixed part of a board: its characters, with a newline after each row but the last."""
    picture = ["#"] * geometry.cells
    for cell in bits(floor & ~targets):
        picture[cell] = "_"
    for cell in bits(targets):
        picture[cell] = "O"
    cols = geometry.cols
    lined: list[str] = []
    for start in range(0, geometry.cells, cols):
        lined += picture[start : start + cols]
        lined.append("\n")
    return lined[:-1]


def paint(sketched: list[str], geometry: Geometry, targets: int, boxes: int, player: int) -> str:
    """A sketch with boxes and player on it."""
    picture = sketched.copy()
    cols = geometry.cols
    for cell in bits(boxes):
        picture[cell + cell // cols] = "√" if targets >> cell & 1 else "X"
    picture[player + player // cols] = "S" if targets >> player & 1 else "P"
    return "".join(picture)


def parse(text: str) -> Room:
    """The inverse of Room.text (rows of equal length, walled border)."""
    rows = text.split("\n")
    geometry = Geometry(len(rows), len(rows[0]))
    flat = "".join(rows)
    if len(flat) != geometry.cells:
        raise ValueError("rows of different length")

    def cells(kinds: str) -> int:
        return sum(1 << i for i, symbol in enumerate(flat) if symbol in kinds)

    return Room(geometry, cells("_O√XPS"), cells("O√S"), cells("√X"), next(bits(cells("PS"))))


def move(floor: int, boxes: int, player: int, delta: int) -> tuple[int, int]:
    """gym-sokoban's step: push the box ahead if the cell behind it is free, else walk if the way is free, else stay.

    Returns (boxes, player).
    """
    ahead = player + delta
    if boxes >> ahead & 1:
        if (floor & ~boxes) >> ahead + delta & 1:
            return boxes ^ 1 << ahead ^ 1 << ahead + delta, ahead
        return boxes, player
    return boxes, ahead if floor >> ahead & 1 else player
