"""Advantages that differ from token to token: pure functions over the trained tokens of one trajectory.

All arrays are float64 `[N]`: the trained tokens of one trajectory in the order they were sampled. Text between the
turns is no step of this process: the state after a turn's last token is the one before the next turn's first. `values`
are V of the state before each token; after the last token the episode is over and V is 0.
"""

from collections.abc import Sequence

import numpy as np

WHITE_EPSILON = 1e-8


def discounted(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """`G_t = r_t + gamma G_{t+1}`: rewards `[N]` -> returns `[N]`."""
    return gae(rewards, np.zeros_like(rewards), gamma, 1.0)


def gae(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """`A_t = d_t + gamma lam A_{t+1}`, `d_t = r_t + gamma V_{t+1} - V_t`. Source: arXiv 1506.02438, eq. 16."""
    following = np.append(values[1:], 0.0)
    deltas = (rewards + gamma * following - values).tolist()
    advantages, ahead = [0.0] * len(deltas), 0.0
    for t in range(len(deltas) - 1, -1, -1):
        ahead = deltas[t] + gamma * lam * ahead
        advantages[t] = ahead
    return np.array(advantages)


def bi_level_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    turns: np.ndarray,
    gamma: float,
    lam: float,
    turn_gamma: float,
    turn_lam: float,
) -> np.ndarray:
    """GAE over turns, whose returns become the rewards of GAE over the tokens inside each turn.

    Turn k ends at token e_k, which carries its reward `r_k` and its value `V_k = V(e_k)`:

        A_k = r_k + turn_gamma V_{k+1} - V_k + turn_gamma turn_lam A_{k+1},   R_k = A_k + V_k
        inside the turn: GAE(gamma, lam) with reward R_k at e_k, and nothing after e_k

    A turn ends where `turns` changes, whatever its reward is. Rewards inside a turn (KL penalties) stay where they are.
    Sources: RAGEN arXiv 2504.20073; VAGEN arXiv 2510.16907.
    """
    ends = np.flatnonzero(np.append(turns[1:] != turns[:-1], True))
    coarse = gae(rewards[ends], values[ends], turn_gamma, turn_lam)
    fine = rewards.copy()
    fine[ends] = coarse + values[ends]
    pieces = zip(np.split(fine, ends[:-1] + 1), np.split(values, ends[:-1] + 1), strict=True)
    return np.concatenate([gae(reward, value, gamma, lam) for reward, value in pieces])


def place_rewards(total: float, turns: np.ndarray, turn_rewards: Sequence[float] = ()) -> np.ndarray:
    """Rewards `[N]` that add up to `total`: `turn_rewards[k]` at the last token of turn k, the rest at the very last.

    `turns [N]` is not falling. The reward of a turn without tokens goes to the last token too.
    """
    rewards = np.zeros(len(turns))
    left = total
    for turn in np.unique(turns):
        if turn < len(turn_rewards):
            rewards[np.searchsorted(turns, turn, side="right") - 1] = turn_rewards[turn]
            left -= turn_rewards[turn]
    rewards[-1] += left
    return rewards


def whiten(advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`(A - mean) / sqrt(max(var, 1e-8))` over all tokens of all arrays; biased variance.

    Equal advantages become exactly zero. Source: REINFORCE++, arXiv 2501.03262.
    """
    everything = np.concatenate(list(advantages)) if len(advantages) else np.zeros(0)
    if not len(everything) or np.ptp(everything) == 0.0:
        return [np.zeros_like(part) for part in advantages]
    scale = np.sqrt(max(float(everything.var()), WHITE_EPSILON))
    return [(part - everything.mean()) / scale for part in advantages]
