"""What a success rate is compared to: random play and optimal play on the very same instances."""

from collections.abc import Iterable
from typing import NamedTuple

from rlctl.config.serving import Env
from rlctl.envs.base import Family, Instance, horizon


class Bounds(NamedTuple):
    """Means over episodes."""

    floor: float
    """Success of uniformly random play (every action of every turn, no format errors)."""
    ceiling: float
    """Success of optimal play."""
    exact: bool
    """Whether every floor is exact; else some are Monte Carlo estimates."""


def bounds(env: Env, made: Family, instances: Iterable[Instance]) -> Bounds:
    """Floor and ceiling over `instances`; one that stands there several times counts as often."""
    actions = horizon(env)
    known: dict[str, tuple[float, float, bool]] = {}
    rows = []
    for instance in instances:
        if instance.key not in known:
            floor, exact = made.floor(instance, actions)
            known[instance.key] = floor, made.ceiling(instance, actions).value, exact
        rows.append(known[instance.key])
    if not rows:
        raise ValueError("no instances")
    floors, ceilings, exacts = zip(*rows, strict=True)
    return Bounds(sum(floors) / len(rows), sum(ceilings) / len(rows), all(exacts))
