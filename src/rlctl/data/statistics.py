"""Numbers about a choice of trajectories, for `rlctl data stats`."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlctl.data.choose import response_tokens, versions
from rlctl.wire.samples import Ended


def statistics(ended: Iterable[Ended]) -> dict[str, Any]:
    """Counts by outcome and environment; distributions of reward, reward parts, turns and tokens; policy versions."""
    outcomes, envs, parts = Counter[str](), Counter[str](), dict[str, list[float]]()
    rewards, turns, tokens, seen = list[float](), list[int](), list[int](), Counter[int]()
    successes = 0
    for one in ended:
        trajectory = one.trajectory
        outcomes[one.outcome] += 1
        envs[trajectory.env] += 1
        successes += trajectory.facts.success
        turns.append(len(trajectory.steps))
        tokens.append(response_tokens(trajectory))
        seen[versions(trajectory)[1]] += 1
        if trajectory.reward is not None:
            rewards.append(trajectory.reward)
            for name, value in trajectory.reward_parts.items():
                parts.setdefault(name, []).append(value)
    count = sum(outcomes.values())
    return {
        "trajectories": count,
        "outcomes": dict(sorted(outcomes.items())),
        "envs": dict(sorted(envs.items())),
        "success_rate": successes / count if count else None,
        "reward": distribution(rewards),
        "reward_parts": {name: distribution(values) for name, values in sorted(parts.items())},
        "turns": distribution(turns),
        "response_tokens": distribution(tokens) | {"sum": sum(tokens)},
        "policy_versions": {str(version): number for version, number in sorted(seen.items())},
    }


def distribution(values: list[float] | list[int]) -> dict[str, float]:
    """count, mean, std, min, quartiles, max; only the count when there are none."""
    if not values:
        return {"count": 0}
    array = np.asarray(values, dtype=np.float64)
    low, median, high = np.percentile(array, [25, 50, 75])
    numbers = {"mean": array.mean(), "std": array.std(), "min": array.min(), "p25": low, "p50": median, "p75": high}
    return {"count": len(values), **{k: round(float(v), 6) for k, v in {**numbers, "max": array.max()}.items()}}
