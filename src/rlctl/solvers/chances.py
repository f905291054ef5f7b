"""Exact success probabilities of random and of optimal play within a number of actions, by dynamic programming.

A finite world is a table: `next` int [S, A, K] (state, action, branch -> state) with branch probabilities `branch`
float [A, K] or [1, K], `success` bool [S] and `absorbing` bool [S] (a success is absorbing too). With h actions left,

    V_0(s) = success(s),      V_h(s) = success(s)                                        if s is absorbing
                              V_h(s) = pick_a sum_k branch[a, k] V_{h-1}(next[s, a, k])  otherwise

where pick is the mean over actions (uniformly random play) or the maximum (optimal play; Bellman 1957).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Table:
    """A finite world."""

    next: np.ndarray
    """int [S, A, K]"""
    branch: np.ndarray
    """float [1, K] or [A, K]; rows sum to 1."""
    success: np.ndarray
    """bool [S]"""
    absorbing: np.ndarray
    """bool [S]"""


def action_values(table: Table, values: np.ndarray) -> np.ndarray:
    """Expected value of every action: values [S] of the next states -> [S, A]."""
    return (values[table.next] * table.branch).sum(axis=2)


def random_play(table: Table, steps: int) -> np.ndarray:
    """Success probability of uniformly random play from every state within `steps` actions: float [S]."""
    values = table.success.astype(float)
    for _ in range(steps):
        values = np.where(table.absorbing, table.success, action_values(table, values).mean(axis=1))
    return values


def best_play(table: Table, steps: int) -> np.ndarray:
    """Success probability of optimal (closed-loop) play: float [steps + 1, S], row h for h actions left."""
    rows = [table.success.astype(float)]
    for _ in range(steps):
        rows.append(np.where(table.absorbing, table.success, action_values(table, rows[-1]).max(axis=1)))
    return np.stack(rows)
