"""Shortest Sokoban plans, in moves, by breadth-first search backward from the solved board over whole sets of states.

    layer 0: boxes on the targets, player anywhere
    layer n: every state from which one move (a walk or a push) leads into layer n - 1 and that is in no earlier layer

so a state's layer is its distance to the goal, and playing any move that enters the next lower layer is optimal. Going
backward only pulls exist: boxes in corners and other dead squares are never looked at.

Player positions are bits, so one shift moves all of them at once. With one box the whole layer is a single integer
(bit `box * cells + player`): eight shifts per layer. With more boxes a layer is {set of boxes: set of players}.

Among shortest plans the first in the order up, down, left, right is given, as a first-in first-out search with that
order finds it (RAGEN's `get_shortest_action_path`).
"""

from dataclasses import dataclass
from typing import Literal

from rlctl.solvers.boards import Geometry, Room, bits

MAX_EXPANDED = 200_000
"""Bound on (box set, layer) pairs of one search with several boxes: about a second, some 100 MB."""


Outcome = Literal["solved", "unsolvable", "too_deep", "too_large"]


@dataclass(frozen=True, slots=True)
class Solution:
    """What a search found."""

    outcome: Outcome
    plan: tuple[int, ...] = ()


class OneBox:
    """Layers for a board with one box; `layers[n]` is an int with bit `box * cells + player`."""

    def __init__(self, geometry: Geometry, floor: int, targets: int) -> None:
        n = geometry.cells
        target = targets.bit_length() - 1
        self._n, self._cols, self._pushed = n, geometry.cols, geometry.pushed
        allowed = 0
        for box in bits(floor):
            allowed |= (floor ^ 1 << box) << box * n
        goal = (floor ^ targets) << target * n
        self._free = allowed ^ goal
        self.layers = [goal]

    def grow(self) -> bool:
        """Add the next layer; False when there is none."""
        last, n, cols = self.layers[-1], self._n, self._cols
        up, down, left, right = self._pushed
        layer = (
            last << cols
            | last >> cols
            | last << 1
            | last >> 1
            | (last & up) << (n + 1) * cols
            | (last & down) >> (n + 1) * cols
            | (last & left) << n + 1
            | (last & right) >> n + 1
        ) & self._free
        if not layer:
            return False
        self._free ^= layer
        self.layers.append(layer)
        return True

    def has(self, layer: int, boxes: int, player: int) -> bool:
        return bool(self.layers[layer] >> (boxes.bit_length() - 1) * self._n + player & 1)

    def count(self, layer: int) -> int:
        return self.layers[layer].bit_count()

    def pick(self, layer: int, number: int) -> tuple[int, int]:
        """State `number` of a layer, as (boxes, player)."""
        states = self.layers[layer]
        for _ in range(number):
            states &= states - 1
        box, player = divmod((states & -states).bit_length() - 1, self._n)
        return 1 << box, player


class ManyBoxes:
    """Layers for any number of boxes; `layers[n]` is {boxes: players}, both sets of cells."""

    def __init__(self, geometry: Geometry, floor: int, targets: int) -> None:
        self._floor, self._cols = floor, geometry.cols
        goal = {targets: floor & ~targets}
        self._seen = dict(goal)
        self.layers = [goal]
        self.expanded = 0

    def grow(self) -> bool:
        """Add the next layer; False when there is none."""
        floor, cols = self._floor, self._cols
        reached: dict[int, int] = {}
        for boxes, players in self.layers[-1].items():
            free = floor & ~boxes
            walked = (players << cols | players >> cols | players << 1 | players >> 1) & free
            if walked:
                reached[boxes] = reached.get(boxes, 0) | walked
            for delta, ahead, behind in (
                (-cols, boxes << cols, free >> cols),
                (cols, boxes >> cols, free << cols),
                (-1, boxes << 1, free >> 1),
                (1, boxes >> 1, free << 1),
            ):
                # The player stands where the box was and the box one further; both step back.
                for cell in bits(players & ahead & behind):
                    before = boxes ^ 1 << cell + delta ^ 1 << cell
                    reached[before] = reached.get(before, 0) | 1 << cell - delta
        self.expanded += len(self.layers[-1])
        seen, layer = self._seen, {}
        for boxes, players in reached.items():
            known = seen.get(boxes, 0)
            if new := players & ~known:
                layer[boxes] = new
                seen[boxes] = known | new
        if not layer:
            return False
        self.layers.append(layer)
        return True

    def has(self, layer: int, boxes: int, player: int) -> bool:
        return bool(self.layers[layer].get(boxes, 0) >> player & 1)

    def count(self, layer: int) -> int:
        return sum(players.bit_count() for players in self.layers[layer].values())

    def pick(self, layer: int, number: int) -> tuple[int, int]:
        """State `number` of a layer, as (boxes, player)."""
        for boxes, players in self.layers[layer].items():
            if number < (size := players.bit_count()):
                for _ in range(number):
                    players &= players - 1
                return boxes, (players & -players).bit_length() - 1
            number -= size
        raise IndexError(number)


def backward(geometry: Geometry, floor: int, targets: int) -> OneBox | ManyBoxes:
    """Layer 0 of the search from the solved board."""
    return (ManyBoxes if targets.bit_count() > 1 else OneBox)(geometry, floor, targets)


def solve(room: Room, max_moves: int, max_expanded: int = MAX_EXPANDED) -> Solution:
    """The shortest plan of at most `max_moves` moves."""
    layers = backward(room.geometry, room.floor, room.targets)
    depth = 0
    while not layers.has(depth, room.boxes, room.player):
        if depth == max_moves:
            return Solution("too_deep")
        if not layers.grow():
            return Solution("unsolvable")
        if isinstance(layers, ManyBoxes) and layers.expanded > max_expanded:
            return Solution("too_large")
        depth += 1
    return Solution("solved", descend(room.geometry, layers, depth, room.boxes, room.player))


def descend(geometry: Geometry, layers: OneBox | ManyBoxes, depth: int, boxes: int, player: int) -> tuple[int, ...]:
    """From a state in layer `depth` down to layer 0, at each step by the first action that leads one layer down."""
    plan = []
    for layer in range(depth - 1, -1, -1):
        for action, delta in enumerate(geometry.deltas):
            ahead = player + delta
            pushed = boxes ^ 1 << ahead ^ 1 << ahead + delta if boxes >> ahead & 1 else boxes
            if layers.has(layer, pushed, ahead):
                plan.append(action)
                boxes, player = pushed, ahead
                break
        else:
            raise AssertionError("layers without a way down")
    return tuple(plan)
