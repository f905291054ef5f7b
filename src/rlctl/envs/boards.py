"""What all worlds of boards have in common: episodes of named actions, an expert that plays them."""

from typing import Any

from rlctl.envs import text
from rlctl.envs.base import Instance
from rlctl.envs.episode import Episode
from rlctl.envs.seeded import Seeded


class Boards(Seeded):
    """Base class of families of boards; a family brings what raises NotImplementedError here and in Seeded."""

    actions: tuple[str, ...]
    rules: str
    """What the player is told once."""
    symbols: dict[str, str]
    """Character -> meaning."""

    def episode(self, instance: Instance, stream: int) -> Episode:
        return Episode(self.env, self, instance, stream)

    def demonstrate(self, instance: Instance, number: int = 0, thoughts: bool = False) -> Episode:
        """The expert's episode; `number` decides between equally good actions, and the luck."""
        episode = self.episode(instance, stream=number)
        expert = self.expert(instance, tie=instance.seed * 1_000 + number)
        while not episode.done:
            actions = expert.next(episode.world, episode.limit)
            thought = expert.thought(episode.world, actions) if thoughts else ""
            episode.feed(text.answer(self.env, [self.actions[action] for action in actions], thought))
        return episode

    def world(self, instance: Instance, stream: int) -> Any:
        """A fresh World; `stream` numbers the rollouts of one instance."""
        raise NotImplementedError

    def expert(self, instance: Instance, tie: int) -> Any:
        """An optimal Expert; among equally good actions it chooses by the seed `tie` where the family has a choice."""
        raise NotImplementedError
