"""Own keys of the built-in environments, typed like every other section ([[env]] name = ...)."""

from typing import Literal

from pydantic import Field

from rlctl.config.base import Fraction, Positive, Section


class FrozenLake(Section):
    """gymnasium's FrozenLake, in text."""

    size: int = Field(default=4, ge=2)
    """Side of the square lake."""
    p: Fraction = 0.8
    """Probability that a tile is frozen."""
    slippery: bool = False
    success_rate: Fraction = 1 / 3
    """Probability of the intended direction on slippery ice; the rest is split over both perpendicular ones."""
    maps: Literal["gymnasium", "ragen", "ragen_v1"] = "gymnasium"
    """gymnasium: start and goal in opposite corners; ragen, ragen_v1: random ones, as RAGEN of 2025-09 and 2025-02."""


class Sokoban(Section):
    """gym-sokoban's rules, in text."""

    rows: int = Field(default=6, ge=3)
    """With the walls around it, as `cols`."""
    cols: int = Field(default=6, ge=3)
    boxes: Positive = 1
    search_depth: Positive = 30
    """Depth of the reverse play that makes a room: pulls and walks (ragen, ragen_v1); longest plan in moves (own)."""
    rooms: Literal["ragen", "ragen_v1", "own"] = "own"
    """own: fast generator; ragen: board for board as RAGEN of 2025-03 and later; ragen_v1: as RAGEN of 2025-02."""
    max_plan: int = Field(default=100, gt=0)
    """Rooms whose shortest solution is longer are skipped."""


WORLDS: dict[str, type[Section]] = {"frozenlake": FrozenLake, "sokoban": Sokoban}
