"""FrozenLake maps by seed, bit for bit as their references draw them (numpy's PCG64; one generator per map).

- `gymnasium`: `generate_random_map`: start top left, goal bottom right, redrawn until there is a way.
- `ragen_v1` (RAGEN, 2025-02): start and goal anywhere, drawn again until they differ; may overwrite holes.
- `ragen` (RAGEN, 2025-09 and later): as before, but equal start and goal redraw the whole board.
"""

from collections.abc import Callable

import numpy as np

from rlctl.solvers.lakes import Lake, connected, spreader

Maker = Callable[[int], Lake | None]
MAX_DRAWS = 1_000


def maker(kind: str, size: int, p: float) -> Maker:
    """The function seed -> Lake of one kind of map; `p` is the probability that a tile is frozen.

    It gives None where MAX_DRAWS boards had no way to the goal (the references would go on for ever).
    """
    spread, full, last = spreader(size), (1 << size * size) - 1, size * size - 1
    # numpy's Generator.choice(["F", "H"], p=[p, 1-p]) draws one uniform number per tile and compares it with this.
    frozen_below = p / (p + (1 - p))

    def ends(rng: np.random.Generator) -> tuple[int, int] | None:
        if kind == "gymnasium":
            return 0, last
        if kind == "ragen_v1":
            while True:
                row, col, goal_row, goal_col = (int(rng.integers(0, size)) for _ in range(4))
                if (row, col) != (goal_row, goal_col):
                    return row * size + col, goal_row * size + goal_col
        start, goal = (r * size + c for r, c in (rng.integers(size, size=2).tolist() for _ in range(2)))
        return (start, goal) if start != goal else None

    def make(seed: int) -> Lake | None:
        rng = np.random.Generator(np.random.PCG64(seed))
        for _ in range(MAX_DRAWS):
            tiles = rng.random(size * size) >= frozen_below
            holes = int.from_bytes(np.packbits(tiles, bitorder="little").tobytes(), "little")
            if (pair := ends(rng)) is None:
                continue
            holes &= ~(1 << pair[0] | 1 << pair[1])
            if connected(spread, full ^ holes, *pair):
                return Lake(size, holes, *pair)
        return None

    return make
