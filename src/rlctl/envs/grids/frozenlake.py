"""FrozenLake in text: gymnasium's rules, maps of gymnasium or of RAGEN, dry or slippery ice.

Slippery ice turns a move to either side with (1 - success_rate) / 2 each, as gymnasium: one uniform number per step,
compared with the cumulative probabilities of (turned left, intended, turned right).
"""

import random
from typing import Protocol

import numpy as np

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Outcome, Rate, Skip, horizon
from rlctl.envs.boards import Boards
from rlctl.envs.grids import lakes
from rlctl.solvers.chances import Table, action_values, best_play, random_play
from rlctl.solvers.lakes import Lake, distances, neighbours, table

Moves = list[tuple[int, int, int, int]]


class Uniform(Protocol):
    """A source of numbers in [0, 1): random.Random or numpy's Generator."""

    def random(self) -> float: ...


class LakeWorld:
    """One episode on one lake; `luck` is None on dry ice."""

    def __init__(self, lake: Lake, after: Moves, success_rate: float = 1.0, luck: Uniform | None = None) -> None:
        self.lake = lake
        self.cell = lake.start
        self._after = after
        self._luck = luck
        slip = (1 - success_rate) / 2
        self._bounds = (slip, slip + success_rate)

    def render(self) -> str:
        """P player, _ frozen, O hole, G goal; X player in a hole, √ player on the goal. The start is ice."""
        lake, size = self.lake, self.lake.size
        cells = ["O" if lake.holes >> i & 1 else "_" for i in range(size * size)]
        cells[lake.goal] = "G"
        cells[self.cell] = "√" if self.cell == lake.goal else "X" if lake.holes >> self.cell & 1 else "P"
        return "\n".join("".join(cells[i : i + size]) for i in range(0, size * size, size))

    def step(self, action: int) -> Outcome:
        """Reward 1 on the goal, 0 otherwise; done on goal and holes."""
        if self._luck is not None:
            drawn = self._luck.random()
            left, intended = self._bounds
            action = (action - 1 if drawn < left else action if drawn < intended else action + 1) % 4
        self.cell = self._after[self.cell][action]
        success = self.cell == self.lake.goal
        return Outcome(float(success), success or bool(self.lake.holes >> self.cell & 1), success)


class LakeExpert:
    """Plays the action with the highest probability of success in the actions that are left.

    On dry ice that is a shortest way, so several actions can be given at once; on slippery ice only the next one,
    by value iteration on the true probabilities. Equally good actions are drawn by the seed `tie`.
    """

    def __init__(self, lake: Lake, after: Moves, actions: int, success_rate: float, slippery: bool, tie: int) -> None:
        self._after = after
        self._left = actions
        self._slippery = slippery
        self._ties = random.Random(f"tie {tie}")
        self._distance = distances(lake, after)
        if slippery:
            self._table = table(lake, after, success_rate)
            self._values = best_play(self._table, actions)

    def next(self, world: LakeWorld, limit: int) -> tuple[int, ...]:
        cell, plan = world.cell, []
        for _ in range(1 if self._slippery else limit):
            best = self._best(cell)
            plan.append(best[int(self._ties.random() * len(best))])
            self._left = max(self._left - 1, 1)
            cell = self._after[cell][plan[-1]]
            if self._distance[cell] == 0:
                break
        return tuple(plan)

    def thought(self, world: LakeWorld, actions: tuple[int, ...]) -> str:
        names = ", ".join(FrozenLake.actions[action] for action in actions)
        if self._slippery:
            return f"The ice is slippery; {names} gives the best chance to reach the goal."
        return f"The goal is {self._distance[world.cell]} moves away, the holes are to be avoided: {names}."

    def _best(self, cell: int) -> list[int]:
        if self._slippery:
            values = action_values(self._table, self._values[self._left - 1])[cell]
            return [int(a) for a in np.flatnonzero(values >= values.max() - 1e-12)]
        wanted = self._distance[cell] - 1
        return [a for a in range(4) if self._distance[self._after[cell][a]] == wanted]


class FrozenLake(Boards):
    """All lakes of one [[env]]."""

    actions: tuple[str, ...] = ("Left", "Down", "Right", "Up")
    symbols: dict[str, str] = {
        "P": "you",
        "_": "ice",
        "O": "hole",
        "G": "goal",
        "X": "you in a hole",
        "√": "you on the goal",
    }
    # 3,828 maps of 4x4 have a way from corner to corner. At p = 0.8 the first 60,000 seeds give 2,778 of them: 702 for
    # demonstrations and 57 to test those, 1,554 for training, 465 for evaluation.
    shares = {"sft": 25, "sft_test": 2, "train": 57, "val": 16}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.FrozenLake.model_validate(env.options)
        # On slippery ice the expert gives one action a turn, to see where it got.
        self._horizon = min(env.max_actions, env.max_turns) if self.options.slippery else horizon(env)
        self._after = neighbours(self.options.size)
        self._make = lakes.maker(self.options.maps, self.options.size, self.options.p)
        self.rules = "You walk over a frozen lake. Reach the goal, and do not step into a hole: that ends the game." + (
            f" The ice is slippery: a move goes the way you meant with probability {self.options.success_rate:.2g},"
            " otherwise to one of the two sides of that way."
            if self.options.slippery
            else ""
        )

    def instance(self, seed: int) -> Instance | Skip:
        lake = self._make(seed)
        if lake is None:
            return Skip("no_instance")
        return Instance("/".join(lake.rows), seed, lake, distances(lake, self._after)[lake.start])

    def world(self, instance: Instance, stream: int) -> LakeWorld:
        if not self.options.slippery:
            return LakeWorld(instance.payload, self._after)
        luck = random.Random(f"slip {instance.seed} {stream}")
        return LakeWorld(instance.payload, self._after, self.options.success_rate, luck)

    def expert(self, instance: Instance, tie: int) -> LakeExpert:
        options = self.options
        return LakeExpert(instance.payload, self._after, self._horizon, options.success_rate, options.slippery, tie)

    def floor(self, instance: Instance, actions: int) -> Rate:
        return Rate(float(random_play(self._table(instance), actions)[instance.payload.start]), True)

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        """Closed-loop optimum: an upper bound where an answer commits to several moves on slippery ice."""
        return Rate(float(best_play(self._table(instance), actions)[actions][instance.payload.start]), True)

    def _table(self, instance: Instance) -> Table:
        return table(instance.payload, self._after, self.options.success_rate if self.options.slippery else 1.0)
