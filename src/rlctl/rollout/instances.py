"""Which instance comes next: a seeded, weighted mix of environments, each shuffled anew every epoch."""

import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlctl.agents.call import Agent, Call
from rlctl.agents.choose import agent
from rlctl.config import Config
from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.envs.base import Family, Instance
from rlctl.envs.splits import too_few

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """One [[env]] with what was made from it once."""

    env: Env
    family: Family
    agent: Agent

    @property
    def tag(self) -> str:
        return self.env.tag or self.env.name

    def call(
        self,
        base_url: str,
        instance: Instance,
        stream: int,
        sampling: dict[str, Any],
        timeout_s: float,
        recorded: bool = True,
    ) -> Call:
        """An episode to be played; a program outside is told everything about the task but its answer."""
        known = {name: value for name, value in self.family.task(instance).items() if name != "ground_truth"}
        task = {"env": self.tag, "seed": instance.seed, "stream": stream, **known}
        return Call(base_url, self.family.episode(instance, stream), sampling, timeout_s, task, recorded)

    def held_out(self, split: str, episodes: int) -> list[Instance]:
        """`episodes` instances of a split, always the same; each once while there are enough, then again."""
        found = list(itertools.islice(self.family.distinct(split, self.env.seed), episodes))
        if not found:
            raise too_few(self.env, split, episodes, 0)
        return [found[i % len(found)] for i in range(episodes)]


@dataclass(frozen=True)
class Task:
    """One prompt of the training stream."""

    position: int
    """Place in the stream, from 0."""
    world: World
    instance: Instance


def worlds(config: Config) -> dict[str, World]:
    """The environments of a run by tag."""
    made = [world(env) for env in config.env]
    for one in made:
        for problem in getattr(one.family, "problems", ()):
            log.warning("%s: left out: %s", one.tag, problem)
    return {one.tag: one for one in made}


def world(env: Env) -> World:
    return World(env, family(env), agent(env))


def stream(config: Config, made: dict[str, World], skip: int = 0) -> Iterator[Task]:
    """Endless tasks, the same for the same configuration; `skip` of them were drawn in an earlier life of this run."""
    choose = random.Random(f"{config.run.seed}/mix")
    weights = [world.env.weight for world in made.values()]
    epochs = {tag: _epochs(_training(world.env), f"{config.run.seed}/{tag}") for tag, world in made.items()}
    for position in itertools.count():
        tag = choose.choices(list(made), weights)[0]
        instance = next(epochs[tag])
        if position >= skip:
            yield Task(position, made[tag], instance)


def _training(env: Env) -> list[Instance]:
    return instances(env, "train", env.instances, env.seed)


def _epochs(items: Sequence[Instance], seed: str) -> Iterator[Instance]:
    for epoch in itertools.count():
        order = list(range(len(items)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        for index in order:
            yield items[index]
