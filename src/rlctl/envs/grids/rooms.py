"""Sokoban rooms by seed, board for board as RAGEN makes them (after gym-sokoban 0.0.6), on bit sets.

The references draw from Python's and numpy's Mersenne Twister, both seeded with the instance's seed; the order of the
draws is theirs, the generators are this instance's own. `ragen_v1` is RAGEN of 2025-02; `ragen` (2025-03 and later)
ends with a short walk of the player. Where the references find no room they start again from a seed made with Python's
salted `hash`, another one in every process: such a seed has no room here.
"""

import random

import numpy as np

from rlctl.solvers.boards import Geometry, Room, bits

TRIES = 4
MAX_STATES = 300_000
CHANGE_DIRECTION = 0.35
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Cells, relative to the walker, that become floor."""

Locations = tuple[tuple[int, int], ...]
"""(target, cell of its box) for every box, targets ascending."""


def reference_room(geometry: Geometry, boxes: int, search_depth: int, seed: int, walk: bool) -> Room | None:
    """The room of `seed`; None where the reference would retry with another seed."""
    rng, placer = random.Random(seed), np.random.RandomState(seed)
    for _ in range(TRIES):
        floor = topology(geometry, rng)
        cells = list(bits(floor))
        if len(cells) <= boxes + 1:
            return None
        player = cells.pop(int(placer.randint(len(cells))))
        targets = 0
        for _ in range(boxes):
            targets |= 1 << cells.pop(int(placer.randint(len(cells))))
        state, locations = reverse_play(geometry, floor, targets, player, search_depth)
        if state is not None:
            if walk:
                state = _walk(geometry, floor, state, _displacement(geometry, locations), rng)
            return Room(geometry, floor, targets, state[0], state[1])
    return None


def topology(geometry: Geometry, rng: random.Random) -> int:
    """Floor left by a random walk with random brushes: a set of inner cells."""
    rows, cols = geometry.rows, geometry.cols
    draw, uniform = rng.randrange, rng.random  # randrange(n) draws as sample(n things, 1) does
    down, right = DIRECTIONS[draw(4)]
    row, col = draw(1, rows), draw(1, cols)
    brushes = [sum(1 << r * cols + c + cols + 1 for r, c in brush) for brush in BRUSHES]
    floor = 0
    for _ in range(int(1.7 * (rows + cols))):
        if uniform() < CHANGE_DIRECTION:
            down, right = DIRECTIONS[draw(4)]
        row = max(min(row + down, rows - 2), 1)
        col = max(min(col + right, cols - 2), 1)
        floor |= brushes[draw(5)] << (row - 1) * cols + col - 1
    return floor & geometry.inner


def reverse_play(
    geometry: Geometry, floor: int, targets: int, player: int, depth: int
) -> tuple[tuple[int, int] | None, Locations]:
    """Depth-first search over pulls from the solved board for the best score = box swaps x sum of box displacements.

    A box swap is a pull of another box than the last one (gym-sokoban 0.0.6 forgets the last one and counts all pulls).
    Returns ((boxes, player), locations) of the first state with the highest score; None for the state when no score is
    above 0. A state with a covered target scores 0. States are compared as the reference's boards: a box that has been
    pulled looks different from one that has not (its codes 3 and 4), and the remaining depth is not compared.
    """
    start: Locations = tuple((target, target) for target in bits(targets))
    best, found = 0, None
    best_locations = start
    seen: set[tuple[int, int, int]] = set()
    # boxes, those of them that were pulled, player, box of each target, swaps, target of the last box, remaining depth
    stack: list[tuple[int, int, int, Locations, int, int, int]] = [(targets, 0, player, start, 0, -1, depth - 1)]
    while stack:
        boxes, pulled, player, locations, swaps, last, left = stack.pop()
        if left <= 0 or (boxes, pulled, player) in seen or len(seen) >= MAX_STATES:
            continue
        seen.add((boxes, pulled, player))
        if not targets & (boxes | 1 << player):
            score = swaps * _displacement(geometry, locations)
            if score > best:
                best, found, best_locations = score, (boxes, player), locations
        for delta in reversed(geometry.deltas):
            ahead, behind = player + delta, player - delta
            if not (floor & ~boxes) >> ahead & 1:
                continue
            if not boxes >> behind & 1:
                stack.append((boxes, pulled, ahead, locations, swaps, last, left - 1))
                continue
            drawn = boxes ^ 1 << behind ^ 1 << player
            marks = pulled & ~(1 << behind) | 1 << player
            mine = next(target for target, cell in locations if cell == behind)
            moved = tuple((target, player if target == mine else cell) for target, cell in locations)
            stack.append((drawn, marks, ahead, moved, swaps + (mine != last), mine, left - 1))
    return found, best_locations


def _displacement(geometry: Geometry, locations: Locations) -> int:
    """Sum over boxes of the Manhattan distance from target to box."""
    cols = geometry.cols
    return sum(abs(target // cols - cell // cols) + abs(target % cols - cell % cols) for target, cell in locations)


def _walk(
    geometry: Geometry, floor: int, state: tuple[int, int], displacement: int, rng: random.Random
) -> tuple[int, int]:
    """RAGEN's walk of the player: with probability 0.8 (box one cell away) or 0.5, up to three moves to new cells."""
    boxes, player = state
    if rng.random() > (0.8 if displacement == 1 else 0.5):
        return state
    visited = 1 << player
    for _ in range(3):
        choices = [player + d for d in geometry.deltas if (floor & ~boxes & ~visited) >> player + d & 1]
        if not choices:
            break
        player = choices[rng.randrange(len(choices))]
        visited |= 1 << player
        if rng.random() > 0.5:
            break
    return boxes, player
