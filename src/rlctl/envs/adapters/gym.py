"""Every gymnasium environment with discrete actions, as text: its observation, or its own ANSI picture.

Instances are compared by their first picture; where all episodes begin alike (`split_by = "seed"`) by the seed.
"""

import random
import re
from typing import Any

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Outcome, Rate, horizon
from rlctl.envs.boards import Boards
from rlctl.errors import ConfigError

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SAMPLES = 100
"""Random episodes per instance that the floor is estimated with."""


class GymWorld:
    """One episode; a total reward of `success_reward` at its end is a success."""

    def __init__(self, made: Any, seed: int, ansi: bool, success_reward: float) -> None:
        self._made, self._ansi, self._wanted = made, ansi, success_reward
        self._seen, _ = made.reset(seed=seed)
        self._total = 0.0

    def render(self) -> str:
        return COLOURS.sub("", self._made.render()).strip() if self._ansi else str(self._seen)

    def step(self, action: int) -> Outcome:
        self._seen, reward, terminated, truncated, _ = self._made.step(action)
        self._total += float(reward)
        done = bool(terminated or truncated)
        return Outcome(float(reward), done, done and self._total >= self._wanted)


class Gymnasium(Boards):
    """One environment id. Only the floor is known, by playing at random."""

    shares = {"train": 80, "val": 20}
    symbols: dict[str, str] = {}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.Gymnasium.model_validate(env.options)
        try:
            import gymnasium
        except ImportError:
            raise ConfigError(worlds.missing("gymnasium")) from None
        self._gymnasium: Any = gymnasium
        try:
            space = self._new().action_space
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            raise ConfigError(f"gymnasium environment {self.options.id!r}: {error}") from error
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start:
            raise ConfigError(f"gymnasium environment {self.options.id!r} has {space}, not actions 0 to n-1")
        names = self.options.actions or [str(action) for action in range(int(space.n))]
        if len(names) != space.n:
            raise ConfigError(f"gymnasium environment {self.options.id!r} has {space.n} actions, not {len(names)}")
        self.actions, self.rules = tuple(names), self.options.rules

    def instance(self, seed: int) -> Instance:
        first = self._world(seed).render()
        key = f"{first}\nseed {seed}" if self.options.split_by == "seed" else first
        return Instance(key, seed, None, 1)

    def world(self, instance: Instance, stream: int) -> GymWorld:
        """The start is the instance's; gymnasium knows one generator per episode, so all streams share their luck."""
        return self._world(instance.seed)

    def floor(self, instance: Instance, actions: int) -> Rate:
        luck = random.Random(f"floor {instance.key}")
        wins = 0
        for _ in range(SAMPLES):
            world, left = self._world(instance.seed), actions
            while left:
                outcome = world.step(luck.randrange(len(self.actions)))
                left = 0 if outcome.done else left - 1
                wins += outcome.success
        return Rate(wins / SAMPLES, False)

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Unknown."""

    def _new(self) -> Any:
        mode = {"render_mode": "ansi"} if self.options.picture == "ansi" else {}
        limit = max(horizon(self.env), 1) + 1  # the episode ends by our own limits first
        return self._gymnasium.make(self.options.id, max_episode_steps=limit, **mode, **self.options.parameters)

    def _world(self, seed: int) -> GymWorld:
        return GymWorld(self._new(), seed, self.options.picture == "ansi", self.options.success_reward)
