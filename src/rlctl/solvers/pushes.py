"""Plans for rooms with many boxes: weighted A* from push to push.

    a node: the boxes, and the player where his last push left him
    f = moves so far + weight * h,   h = cheapest pairing of boxes and targets, by pushes of lone boxes

h never says too much, and a large weight makes it lead: plans of weight 2 were 2 % longer than the shortest ones on
Boxoban's levels, found with an eighth of the nodes of weight 1. Nothing proves a plan shortest here (`search` does
that, where it can). Positions that are lost (`deadlocks`) are not followed.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from rlctl.solvers.boards import Room, bits, shift
from rlctl.solvers.deadlocks import FAR, Field
from rlctl.solvers.search import Outcome, Solution

LADDER = ((2, 10_000), (6, 100_000))
"""(weight, most nodes with up to 4 boxes) of the searches tried one after the other: about a second, then some ten. The
work for a node grows with the square of the boxes, so the bound falls with it."""
Push = tuple[int, int]
"""(cell of the player before it, action)"""


def pairing(costs: list[list[int]]) -> int:
    """Least sum over a one-to-one choice of columns for rows: Hungarian method (Kuhn 1955) by shortest augmenting
    paths, O(rows^2 * columns). `costs` int [rows][columns >= rows].
    """
    columns = len(costs[0])
    row_price, column_price = [0] * (len(costs) + 1), [0] * (columns + 1)
    owner = [0] * (columns + 1)  # row (from 1) that has a column (from 1); column 0 stands for the row to be placed
    for row in range(1, len(costs) + 1):
        owner[0], column = row, 0
        slack, way, done = [FAR * 64] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            done[column] = True
            here, least, following = owner[column], FAR * 64, 0
            prices, price = costs[here - 1], row_price[here]
            for other in range(1, columns + 1):
                if not done[other]:
                    reduced = prices[other - 1] - price - column_price[other]
                    if reduced < slack[other]:
                        slack[other], way[other] = reduced, column
                    if slack[other] < least:
                        least, following = slack[other], other
            for other in range(columns + 1):
                if done[other]:
                    row_price[owner[other]] += least
                    column_price[other] -= least
                else:
                    slack[other] -= least
            column = following
        while column:
            owner[column] = owner[way[column]]
            column = way[column]
    return sum(costs[owner[column] - 1][column - 1] for column in range(1, columns + 1) if owner[column])


class Pushes:
    """One search."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.field = Field(room.geometry, room.floor, room.targets)
        self._bounds: dict[int, int] = {}
        self._trace: list[tuple[int, int, int]] = []
        """Of every node found: its parent's number, the player's cell and the action of the push that led to it."""

    def bound(self, boxes: int) -> int:
        """h of a set of boxes; FAR or more where they can never all come to targets."""
        known = self._bounds.get(boxes)
        if known is None:
            table = self.field.pushes
            known = self._bounds[boxes] = pairing([table[cell] for cell in bits(boxes)])
        return known

    def run(self, weight: int, max_nodes: int) -> tuple[Outcome, list[Push]]:
        """(outcome, pushes of the plan)."""
        room, trace = self.room, [(-1, 0, 0)]
        self._trace = trace
        if self.bound(room.boxes) >= FAR:
            return "unsolvable", []
        heap = [(0, 0, 0, room.boxes, room.player)]  # f, minus the node's number (the latest first), moves, the node
        done: set[tuple[int, int]] = set()
        fewest: dict[tuple[int, int], int] = {}
        while heap:
            _, newest, moves, boxes, player = heappop(heap)
            if boxes == room.targets:
                return "solved", self._pushes(-newest)
            if (boxes, player) in done:
                continue
            done.add((boxes, player))
            if len(done) > max_nodes:
                return "too_large", []
            for walked, action, cell, after in self._successors(boxes, player):
                ahead, total = self.bound(after), moves + walked + 1
                if ahead >= FAR or fewest.get((after, cell), FAR) <= total:
                    continue
                delta = room.geometry.deltas[action]
                if ahead and self.field.lost(cell + delta, after):
                    continue
                fewest[after, cell] = total
                heappush(heap, (total + weight * ahead, -len(trace), total, after, cell))
                trace.append((-newest, cell - delta, action))
        return "unsolvable", []

    def _successors(self, boxes: int, player: int) -> Iterator[tuple[int, int, int, int]]:
        """(moves before the push, action, cell of the box and then of the player, boxes after it)."""
        field = self.field
        layers = field.walks(boxes, player)
        reached = sum(layers)
        may = field.live & ~boxes
        movable = field.corral(boxes, reached) or boxes
        for action, delta in enumerate(field.deltas):
            for cell in bits(movable & shift(reached, delta) & shift(may, -delta)):
                walked = next(n for n, layer in enumerate(layers) if layer >> cell - delta & 1)
                yield walked, action, cell, boxes ^ 1 << cell ^ 1 << cell + delta

    def _pushes(self, number: int) -> list[Push]:
        pushes = []
        while number:
            number, player, action = self._trace[number]
            pushes.append((player, action))
        return pushes[::-1]


def solve_by_pushes(room: Room, max_moves: int, ladder: Sequence[tuple[int, int]] = LADDER) -> Solution:
    """A plan of at most `max_moves` moves; "too_deep" where the plan found is longer (a shorter one may exist)."""
    search, boxes = Pushes(room), room.boxes.bit_count()
    for weight, max_nodes in ladder:
        outcome, pushes = search.run(weight, max_nodes * 16 // max(16, boxes**2))
        if outcome == "solved":
            plan = tuple(walked(room, pushes))
            return Solution("solved", plan) if len(plan) <= max_moves else Solution("too_deep")
        if outcome == "unsolvable":
            return Solution("unsolvable")
    return Solution("too_large")


def walked(room: Room, pushes: list[Push]) -> Iterator[int]:
    """The pushes with shortest walks between them: actions."""
    field, deltas = Field(room.geometry, room.floor, room.targets), room.geometry.deltas
    boxes, player = room.boxes, room.player
    for place, action in pushes:
        layers = field.walks(boxes, place)
        away = next(n for n, layer in enumerate(layers) if layer >> player & 1)
        for layer in reversed(layers[:away]):
            step = next(a for a, delta in enumerate(deltas) if layer >> player + delta & 1)
            player += deltas[step]
            yield step
        yield action
        player = place + deltas[action]
        boxes ^= 1 << player ^ 1 << player + deltas[action]
