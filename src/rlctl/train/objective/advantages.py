"""Advantages of one group: rewards of the trajectories of one prompt -> one advantage each.

All of them are pure: `rewards [G] -> advantages [G]`, float64. Trajectories that failed are left out by the caller,
so they neither get tokens nor move the baseline. Equal rewards give exactly zero wherever there is a baseline (no
rounding noise).
"""

from collections.abc import Callable, Sequence

import numpy as np

EPSILON = 1e-6


def grpo(rewards: np.ndarray) -> np.ndarray:
    """`A_i = (R_i - mean R) / (std R + 1e-6)`, unbiased std (G - 1). Source: arXiv 2402.03300, 4.1."""
    return dr_grpo(rewards) / (_std(rewards) + EPSILON)


def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """`A_i = R_i - mean R`: no division by std, which favours nearly solved prompts. Source: arXiv 2503.20783, 3.1."""
    if np.ptp(rewards) == 0.0:
        return np.zeros_like(rewards)
    return rewards - rewards.mean()


def rloo(rewards: np.ndarray) -> np.ndarray:
    """`A_i = R_i - mean_{j != i} R_j = G / (G - 1) (R_i - mean R)`; 0 for G = 1. Source: arXiv 2402.14740, 3.2."""
    size = len(rewards)
    return dr_grpo(rewards) * (size / (size - 1)) if size > 1 else np.zeros_like(rewards)


def reinforce(rewards: np.ndarray) -> np.ndarray:
    """`A_i = R_i`: no baseline. Source: Williams 1992, doi 10.1007/BF00992696."""
    return rewards.copy()


def remax(rewards: np.ndarray, greedy: float) -> np.ndarray:
    """`A_i = R_i - R_greedy`: the reward of greedy decoding is the baseline. Source: arXiv 2310.10505."""
    return rewards - greedy


def step_groups(anchors: Sequence[Sequence[bytes]], returns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Group in group: turns of a group's trajectories that began in the same state are compared with one another.

    `anchors[i][t]` identifies the state before turn t of trajectory i, `returns[i] [T_i]` is the return from there on.
    `A_it = (R_it - mean) / (std + 1e-6)` over all turns with the same anchor; 0 where a state occurs once. Source:
    GiGPO, arXiv 2505.10978.
    """
    places: dict[bytes, list[tuple[int, int]]] = {}
    for i, states in enumerate(anchors):
        for t, state in enumerate(states):
            places.setdefault(state, []).append((i, t))
    advantages = [np.zeros(len(states)) for states in anchors]
    for same in places.values():
        for (i, t), value in zip(same, grpo(np.array([returns[i][t] for i, t in same])), strict=True):
            advantages[i][t] = value
    return advantages


def _std(rewards: np.ndarray) -> float:
    return float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0


ADVANTAGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "gigpo": grpo,
    "reinforce_pp_baseline": dr_grpo,
}
"""Of the whole trajectory; gigpo adds that of `step_groups`, reinforce_pp_baseline whitens (see `credit`)."""


def group_advantages(kind: str, rewards: Sequence[float]) -> np.ndarray:
    """Advantages `[G]` of the group's rewards `[G]`; `kind` is `algo.advantage`."""
    values = np.asarray(rewards, dtype=np.float64)
    return ADVANTAGES[kind](values) if len(values) else values


def has_signal(advantages: np.ndarray) -> bool:
    """Whether any trajectory of the group would move the policy."""
    return bool(np.any(advantages != 0.0))
