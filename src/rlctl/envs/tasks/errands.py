"""`name = "command"`: tasks that only the agent's own program knows; it is told a number and reports how it went."""

from rlctl.config.serving import Env
from rlctl.envs.base import Instance
from rlctl.envs.exchange import Exchange, Verdict
from rlctl.envs.seeded import Seeded
from rlctl.errors import ConfigError


class Errands(Seeded):
    """Task numbers 0, 1, 2, ...; their crc32 decides which are held out."""

    shares = {"train": 80, "val": 20}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if not env.command:
            raise ConfigError('[[env]] name = "command" needs `command`, the program that plays an episode')

    def instance(self, seed: int) -> Instance:
        return Instance(f"task {seed}", seed, None, 1)

    def episode(self, instance: Instance, stream: int) -> Exchange:
        return Exchange(self.env, [], lambda answer, turn: Verdict(0.0))

    def task(self, instance: Instance) -> dict[str, str]:
        return {"split": self.split(instance)}

    def floor(self, instance: Instance, actions: int) -> None:
        """Only the program could know."""

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Only the program could know."""
