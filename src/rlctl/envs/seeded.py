"""Families whose instances come from seeds: splits by the text of an instance, an optimal player for demonstrations."""

from collections.abc import Iterator
from typing import Any, ClassVar

from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Play, Rate, Skip
from rlctl.envs.splits import Patience, split_of
from rlctl.errors import ConfigError


class Seeded:
    """Base class; a family brings what raises NotImplementedError here."""

    shares: ClassVar[dict[str, int]] = {"sft": 30, "sft_test": 5, "train": 45, "val": 20}
    """Per cent of all instances that belong to each split."""
    seeds_end: int | None = None
    """No instance has this seed or a higher one; None: there is no end."""
    problems: tuple[str, ...] = ()
    """What was found in its source (a file of levels) and cannot be used, with its place."""

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def split(self, instance: Instance) -> str:
        """The split that owns an instance."""
        return split_of(instance.key, self.shares)

    def distinct(self, split: str, seed: int) -> Iterator[Instance]:
        """In the order of their seeds, beginning with `seed`; ends when exhausted."""
        if split not in self.splits:
            raise ConfigError(f"no split {split!r}; there are: {', '.join(self.splits)}")
        seen: set[str] = set()
        patience = Patience()
        while not patience.over and (self.seeds_end is None or seed < self.seeds_end):
            found = self.instance(seed)
            seed += 1
            if isinstance(found, Skip):
                patience.saw(False, found.reason)
                continue
            new = found.key not in seen and self.split(found) == split
            patience.saw(new, "")
            if new:
                seen.add(found.key)
                yield found

    def task(self, instance: Instance) -> dict[str, str]:
        return {}

    def instance(self, seed: int) -> Instance | Skip:
        """The instance of this seed, the same in every process and Python."""
        raise NotImplementedError

    def episode(self, instance: Instance, stream: int) -> Play:
        """A fresh episode; `stream` numbers the rollouts of one instance, each with luck of its own."""
        raise NotImplementedError

    def demonstrate(self, instance: Instance, number: int = 0, thoughts: bool = False) -> Any:
        """One whole episode of the optimal player; `number` tells several of one instance apart."""
        raise NotImplementedError

    def proven(self, instance: Instance) -> bool:
        """Whether `instance.shortest` is surely the fewest actions."""
        return True

    def floor(self, instance: Instance, actions: int) -> Rate | None:
        """Success of uniformly random play within `actions` actions."""
        raise NotImplementedError

    def ceiling(self, instance: Instance, actions: int) -> Rate | None:
        """Success of optimal play within `actions` actions."""
        raise NotImplementedError
