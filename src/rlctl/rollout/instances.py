"""Which instance comes next: a seeded, weighted mix of environments, each shuffled anew every epoch (pure)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlctl.config import Config
from rlctl.config.serving import Env
from rlctl.envs.base import Instance
from rlctl.envs.splits import instances


@dataclass(frozen=True)
class Task:
    """One prompt of the training stream."""

    position: int
    """Place in the stream, from 0."""
    env: Env
    instance: Instance


def stream(config: Config, skip: int = 0) -> Iterator[Task]:
    """Endless tasks, the same for the same configuration; `skip` of them were drawn in an earlier life of this run."""
    worlds = {tag_of(env): list(instances(env, "train", env.instances, env.seed)) for env in config.env}
    choose = random.Random(f"{config.run.seed}/mix")
    orders = {tag_of(env): _epochs(worlds[tag_of(env)], config.run.seed, tag_of(env)) for env in config.env}
    weights = [env.weight for env in config.env]
    position = 0
    while True:
        env = choose.choices(config.env, weights)[0]
        instance = next(orders[tag_of(env)])
        if position >= skip:
            yield Task(position, env, instance)
        position += 1


def tag_of(env: Env) -> str:
    return env.tag or env.name


def _epochs(items: Sequence[Instance], seed: int, tag: str) -> Iterator[Instance]:
    epoch = 0
    while True:
        order = list(range(len(items)))
        random.Random(f"{seed}/{tag}/{epoch}").shuffle(order)
        for index in order:
            yield items[index]
        epoch += 1
