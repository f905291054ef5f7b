"""Rows of played episodes -> what an evaluation reports. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec


class Played(msgspec.Struct, frozen=True):
    """One line of episodes.jsonl."""

    env: str
    index: int
    """Of the instance among those evaluated."""
    sample: int
    """0, 1, ...: tries at the same instance."""
    instance: str
    success: bool
    reward: float
    turns: int
    format_errors: int
    error: str = ""
    """Why the episode failed; it counts as unsuccessful, and a resumed evaluation plays it again."""


def pass_at_k(tries: int, wins: int, k: int) -> float:
    """Chance that k of `tries` tries, drawn without return, hold a win: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021)."""
    return 1.0 - math.comb(tries - wins, k) / math.comb(tries, k)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of independent values and its standard error (0 for a single one)."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def result(env: str, rows: Sequence[Played], floor: float | None, ceiling: float | None) -> dict[str, Any]:
    """Success with its standard error over instances, pass@k for k = 1, 2, 4, ... up to the tries, and means.

    Tries at one instance are not independent, so instances are the units. The last row of an (index, sample) counts.
    """
    latest = {(row.index, row.sample): row for row in rows}
    wins: dict[int, list[bool]] = defaultdict(list)
    for row in latest.values():
        wins[row.index].append(row.success)
    samples = min(map(len, wins.values()))
    success, error = mean_and_error([sum(one) / len(one) for one in wins.values()])
    passed = {}
    for k in sorted({1 << power for power in range(samples.bit_length())} | {samples}):
        if k <= samples:
            mean, spread = mean_and_error([pass_at_k(len(one), sum(one), k) for one in wins.values()])
            passed[str(k)] = {"mean": mean, "se": spread}
    played = list(latest.values())
    return {
        "env": env,
        "instances": len(wins),
        "samples": samples,
        "success_rate": success,
        "success_se": error,
        "floor": floor,
        "ceiling": ceiling,
        "pass_at": passed,
        "mean_reward": sum(row.reward for row in played) / len(played),
        "mean_turns": sum(row.turns for row in played) / len(played),
        "format_errors": sum(row.format_errors for row in played) / len(played),
        "failed": sum(bool(row.error) for row in played),
    }
