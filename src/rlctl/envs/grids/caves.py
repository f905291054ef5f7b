"""Our own Sokoban rooms: solvable by construction, with their shortest plan, deterministic by seed.

    walls fall at random -> the room is what hangs together -> random targets -> layers backward from the solved board
    -> a plan length, uniform over those the room has -> a state, uniform over the layer of that length

so lengths are spread evenly (a reverse random walk gives mostly one or two moves), and nothing is thrown away unsolved.
"""

import random

from rlctl.solvers.boards import Geometry, Room, bits
from rlctl.solvers.search import ManyBoxes, backward, descend

TRIES = 200
MAX_EXPANDED = 2_000
"""With several boxes the layers end here, so a room costs milliseconds; its plan is still the shortest."""


def cave_room(
    geometry: Geometry, boxes: int, depth: int, seed: int, least: int = 1
) -> tuple[Room, tuple[int, ...]] | None:
    """The room of `seed` and its shortest plan of `least` to `depth` moves; None if TRIES caves were too small."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        floor = cave(geometry, rng)
        cells = list(bits(floor))
        if len(cells) < boxes + 2:
            continue
        targets = sum(1 << cell for cell in rng.sample(cells, boxes))
        search = backward(geometry, floor, targets)
        length = least + rng.randrange(depth - least + 1)
        while len(search.layers) <= length and search.grow():
            if isinstance(search, ManyBoxes) and search.expanded > MAX_EXPANDED:
                break
        longest = len(search.layers) - 1
        if longest < least:
            continue
        if length > longest:
            length = least + rng.randrange(longest - least + 1)
        standing, player = search.pick(length, rng.randrange(search.count(length)))
        plan = descend(geometry, search, length, standing, player)
        return Room(geometry, floor, targets, standing, player), plan
    return None


def cave(geometry: Geometry, rng: random.Random) -> int:
    """Floor of a random room: 1/8, 1/4, 3/8 or 1/2 of the inner cells become wall; one connected part is kept."""
    cells = geometry.cells
    walls = rng.getrandbits(cells)
    match rng.randrange(4):
        case 0:
            walls &= rng.getrandbits(cells) & rng.getrandbits(cells)
        case 1:
            walls &= rng.getrandbits(cells)
        case 2:
            walls &= rng.getrandbits(cells) | rng.getrandbits(cells)
    free = geometry.inner & ~walls
    skipped = rng.randrange(cells)
    later = free >> skipped
    grown = (later & -later) << skipped or free & -free
    cols, floor = geometry.cols, 0
    while grown != floor:
        floor = grown
        grown = (floor | floor << cols | floor >> cols | floor << 1 | floor >> 1) & free
    return floor
