"""What all worlds of boards have in common: boards by seed, splits by their text, episodes of named actions."""

from collections.abc import Iterator
from typing import Any, ClassVar

from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Rate, Skip
from rlctl.envs.episode import Episode
from rlctl.envs.splits import Patience, split_of
from rlctl.errors import ConfigError


class Boards:
    """Base class of families of boards; a family brings what raises NotImplementedError here."""

    actions: tuple[str, ...]
    rules: str
    """What the player is told once."""
    symbols: dict[str, str]
    """Character -> meaning."""
    shares: ClassVar[dict[str, int]]
    """Per cent of all boards that belong to each split."""

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def distinct(self, split: str, seed: int) -> Iterator[Instance]:
        """In the order of their seeds, beginning with `seed`; ends when exhausted."""
        if split not in self.shares:
            raise ConfigError(f"no split {split!r}; there are: {', '.join(self.shares)}")
        seen: set[str] = set()
        patience = Patience()
        while not patience.over:
            found = self.instance(seed)
            seed += 1
            if isinstance(found, Skip):
                patience.saw(False, found.reason)
                continue
            new = found.key not in seen and split_of(found.key, self.shares) == split
            patience.saw(new, "")
            if new:
                seen.add(found.key)
                yield found

    def episode(self, instance: Instance, stream: int) -> Episode:
        return Episode(self.env, self, instance, stream)

    def task(self, instance: Instance) -> dict[str, str]:
        return {}

    def instance(self, seed: int) -> Instance | Skip:
        """The instance of this seed, the same in every process and Python."""
        raise NotImplementedError

    def world(self, instance: Instance, stream: int) -> Any:
        """A fresh World; `stream` numbers the rollouts of one instance."""
        raise NotImplementedError

    def expert(self, instance: Instance, tie: int) -> Any:
        """An optimal Expert; among equally good actions it chooses by the seed `tie` where the family has a choice."""
        raise NotImplementedError

    def floor(self, instance: Instance, actions: int) -> Rate:
        """Success of uniformly random play within `actions` actions."""
        raise NotImplementedError

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        """Success of optimal play within `actions` actions."""
        raise NotImplementedError
