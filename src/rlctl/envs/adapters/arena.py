"""Every single-player game of the package textarena, turn by turn.

Instances are compared by the game's hidden state, so a number to be guessed that is held out is never trained on. The
package draws from Python's global generator; every episode has a state of that generator to itself.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Skip
from rlctl.envs.exchange import Exchange, Verdict, opening
from rlctl.envs.seeded import Seeded
from rlctl.errors import ConfigError

PLAYER = 0


class Luck:
    """A state of the global generator, put in place while a game moves."""

    def __init__(self, seed: str) -> None:
        self._state = random.Random(seed).getstate()

    @contextmanager
    def here(self) -> Iterator[None]:
        outside = random.getstate()
        random.setstate(self._state)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(outside)


class Arena(Seeded):
    """One game. Reward: the game's, at its end; success: at least `success_reward`."""

    shares = {"train": 80, "val": 20}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.TextArena.model_validate(env.options)
        try:
            import textarena
        except ImportError:
            raise ConfigError(worlds.missing("textarena")) from None
        self._make = textarena.make
        self._start(0, Luck("probe"))

    def instance(self, seed: int) -> Instance | Skip:
        game, _ = self._start(seed, Luck(f"start {seed}"))
        state = json.dumps(game.state.game_state, sort_keys=True, default=lambda other: type(other).__name__)
        return Instance(state, seed, None, 1)

    def episode(self, instance: Instance, stream: int) -> Exchange:
        luck = Luck(f"game {instance.seed} {stream}")
        game, first = self._start(instance.seed, luck)

        def judge(text: str, turn: int) -> Verdict:
            with luck.here():
                done, _ = game.step(action=text)
                if not done:
                    return Verdict(0.0, done=False, feedback=seen(game.get_observation()[1]))
                rewards, about = game.close()
            reward = float(rewards[PLAYER])
            invalid = bool(about.get(PLAYER, {}).get("invalid_move"))
            return Verdict(reward, success=reward >= self.options.success_reward, invalid=invalid)

        return Exchange(self.env, opening("", first), judge)

    def _start(self, seed: int, luck: Luck) -> tuple[Any, str]:
        """A fresh game and its first words; ConfigError for a game that is not there or not for one player."""
        name = f"{self.options.game}-raw"
        try:
            with luck.here():
                game = self._make(name)
                game.reset(num_players=1, seed=seed)
                return game, seen(game.get_observation()[1])
        except (ValueError, AssertionError, KeyError, TypeError, LookupError, ImportError) as error:
            raise ConfigError(f"textarena game {self.options.game!r} cannot be played alone: {error}") from error

    def floor(self, instance: Instance, actions: int) -> None:
        """Unknown: nobody knows what random text scores."""

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Unknown."""


def seen(observation: Any) -> str:
    """What the player has not said itself."""
    parts = [str(part[1]) for part in observation if part[0] != PLAYER]
    return "\n".join(parts)
