"""Every environment of the package verifiers: its data set's rows are the instances, it plays and scores by itself
(rlctl.agents.verified).

Evaluation rows are held out, and a training row with the prompt of one of them is left out; without an evaluation set
the prompt's crc32 holds out 20% of the rows.
"""

import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Message
from rlctl.envs.exchange import Exchange, Verdict
from rlctl.envs.splits import split_of
from rlctl.errors import ConfigError

SHARES = {"train": 80, "val": 20}


class Verified:
    """All rows of one environment."""

    splits = ("train", "val")

    def __init__(self, env: Env) -> None:
        self.env = env
        self.environment = load(env)

    def distinct(self, split: str, seed: int) -> Iterator[Instance]:
        """Shuffled by `seed`."""
        if split not in self.splits:
            raise ConfigError(f"no split {split!r}; there are: {', '.join(self.splits)}")
        order = list(self._instances[split])
        random.Random(f"verifiers {seed}").shuffle(order)
        yield from order

    def episode(self, instance: Instance, stream: int) -> Exchange:
        """For show: what is fed to it costs and earns nothing, the environment's own rollout counts."""
        return Exchange(self.env, instance.payload, lambda answer, turn: Verdict(0.0))

    def task(self, instance: Instance) -> dict[str, str]:
        """`data` (training or evaluation set) and `row` say where the agent finds it."""
        return {"data": instance.source, "row": str(instance.seed), "question": instance.key}

    def floor(self, instance: Instance, actions: int) -> None:
        """Unknown: nobody knows what random text scores."""

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Unknown."""

    @cached_property
    def _instances(self) -> dict[str, list[Instance]]:
        train = _read("train", rows(self.environment, "train"))
        if has_evaluation(self.environment):
            held_out = _read("val", rows(self.environment, "val"))
        else:
            held_out = {key: one for key, one in train.items() if split_of(key, SHARES) == "val"}
        return {"train": [one for key, one in train.items() if key not in held_out], "val": list(held_out.values())}


def load(env: Env) -> Any:
    """verifiers.Environment; ConfigError where the package or the environment cannot be had."""
    options = worlds.Verifiers.model_validate(env.options)
    try:
        import verifiers
    except ImportError:
        raise ConfigError(worlds.missing("verifiers")) from None
    try:
        return verifiers.load_environment(options.id, **options.arguments)
    except Exception as error:  # the environment's own code runs here
        raise ConfigError(f"verifiers environment {options.id!r}: {type(error).__name__}: {error}") from error


def has_evaluation(environment: Any) -> bool:
    environment.build_eval_dataset()
    return environment.eval_dataset is not None


def rows(environment: Any, data: str) -> Any:
    """The training or the evaluation set ("train", "val")."""
    return environment.get_dataset() if data == "train" else environment.get_eval_dataset()


def _read(data: str, found: Any) -> dict[str, Instance]:
    """Distinct rows by the text of their prompt, the first of equal ones."""
    instances: dict[str, Instance] = {}
    for number, row in enumerate(found):
        messages = _messages(row["prompt"])
        key = "\n".join(message["content"] for message in messages if message["role"] != "system")
        instances.setdefault(key, Instance(key, number, messages, 1, data))
    return instances


def _messages(prompt: Any) -> list[Message]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in prompt]
