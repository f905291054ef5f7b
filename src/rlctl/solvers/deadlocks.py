"""Where boxes are lost: dead squares, frozen boxes; and corrals, which say what has to be pushed next.

All sets of cells are ints (see `boards`). A test that answers "lost" is right; not every lost position is noticed.
"""

from collections.abc import Iterator
from functools import cached_property

from rlctl.solvers.boards import Geometry, bits, shift

FAR = 1 << 20
"""Pushes from a cell to a target that it cannot come to."""


class Field:
    """What depends on walls and targets only."""

    def __init__(self, geometry: Geometry, floor: int, targets: int) -> None:
        self.geometry, self.floor, self.targets = geometry, floor, targets
        self.deltas = geometry.deltas
        self.axes = ((1, -1), (geometry.cols, -geometry.cols))

    @cached_property
    def pushes(self) -> list[list[int]]:
        """Fewest pushes of a lone box: [cell][target, ascending], with the player wherever he is needed; or FAR."""
        table = [[FAR] * self.targets.bit_count() for _ in range(self.geometry.cells)]
        for column, target in enumerate(bits(self.targets)):
            table[target][column] = 0
            queue = [target]
            for cell in queue:
                for delta in self.deltas:
                    before = cell + delta  # pushed from here by -delta, the player behind it
                    if not self.floor >> before & 1 or table[before][column] < FAR:
                        continue
                    if self.floor >> before + delta & 1:
                        table[before][column] = table[cell][column] + 1
                        queue.append(before)
        return table

    @cached_property
    def live(self) -> int:
        """Cells from which a box can come to some target."""
        return sum(1 << cell for cell in bits(self.floor) if min(self.pushes[cell]) < FAR)

    def walks(self, boxes: int, player: int) -> list[int]:
        """Cells the player can walk to: entry n holds those n moves away."""
        free, cols = self.floor & ~boxes, self.geometry.cols
        layers, last = [], 1 << player
        while last:
            layers.append(last)
            free &= ~last
            last = (last << 1 | last >> 1 | last << cols | last >> cols) & free
        return layers

    def frozen(self, cell: int, boxes: int) -> bool:
        """Whether the box on `cell` can never be moved again, but onto dead squares: blocked along both axes (by walls,
        or by boxes that are themselves blocked; cycles too)."""
        return all(self._blocked(cell, ahead, behind, boxes) for ahead, behind in self.axes)

    def lost(self, cell: int, boxes: int) -> bool:
        """Whether the box just pushed to `cell` froze with a box that is on no target."""
        if not self.frozen(cell, boxes):
            return False
        around = 1 << cell | boxes & sum(1 << cell + delta for delta in self.deltas)
        return any(other == cell or self.frozen(other, boxes) for other in bits(around & ~self.targets))

    def _blocked(self, cell: int, ahead: int, behind: int, boxes: int) -> bool:
        one, other = cell + ahead, cell + behind
        if not self.floor >> one & self.floor >> other & 1:
            return True
        if not (self.live >> one | self.live >> other) & 1:
            return True
        left = boxes & ~(1 << cell)
        return any(boxes >> next_ & 1 and self._stuck(next_, left, 1 << cell) for next_ in (one, other))

    def _stuck(self, cell: int, boxes: int, walls: int) -> bool:
        """Whether the box on `cell` is frozen when `walls` (boxes looked at before) count as walls."""
        for ahead, behind in self.axes:
            one, other = cell + ahead, cell + behind
            solid = self.floor & ~walls
            if not solid >> one & solid >> other & 1 or not (self.live >> one | self.live >> other) & 1:
                continue
            left, more = boxes & ~(1 << cell), walls | 1 << cell
            if not any(boxes >> next_ & 1 and self._stuck(next_, left, more) for next_ in (one, other)):
                return False
        return True

    def corral(self, boxes: int, reached: int) -> int:
        """Boxes around an area the player cannot enter, one of which has to be pushed now; 0 where there is no such.

        Area A of empty cells without the player, with the boxes B beside it: if every push of a box of B from outside
        goes into A, all those pushes can be made now, and something in there is not solved yet, then no other push
        changes what can be done here: the next push may be one of these (PI-corral pruning, Damgaard and others).
        """
        left = self.floor & ~boxes & ~reached
        found, fewest = 0, 1 << 30
        for area in self._areas(left):
            beside = boxes & self._around(area)
            unsolved = beside & ~self.targets | area & self.targets
            if unsolved and beside.bit_count() < fewest and self._closed(area, beside, reached):
                found, fewest = beside, beside.bit_count()
        return found

    def _closed(self, area: int, beside: int, reached: int) -> bool:
        stand = self.floor & ~area
        for delta in self.deltas:
            pushable = beside & shift(stand, delta) & shift(self.live, -delta)
            outward = pushable & ~shift(area | beside, -delta)
            out_of_reach = pushable & ~shift(reached | beside, delta)
            if outward | out_of_reach:
                return False
        return True

    def _around(self, cells: int) -> int:
        cols = self.geometry.cols
        return cells << 1 | cells >> 1 | cells << cols | cells >> cols

    def _areas(self, left: int) -> Iterator[int]:
        while left:
            area, grown = 0, left & -left
            while grown != area:
                area = grown
                grown = (grown | self._around(grown)) & left
            yield area
            left ^= area
