"""Questions with a known answer (GSM8K, MetaMathQA, your own file), judged by a rule of rlctl.rules.

A question's text decides its split: the rows of `val_split` are held out, and a training row with the text of one of
them is left out. Without `val_split` the text's crc32 holds out `val_percent` of the rows.
A right answer in turn t is worth 1 / 2^(t-1) (as RAGEN's MetaMathQA), a wrong one nothing.
"""

import random
from collections.abc import Iterator
from functools import cached_property

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance
from rlctl.envs.exchange import Exchange, Verdict, opening
from rlctl.envs.splits import split_of
from rlctl.envs.tasks import tables
from rlctl.errors import ConfigError
from rlctl.rules.answers import RULES
from rlctl.rules.numbers import answer as number_of

WRONG = "That is not right. Try again."


class Questions:
    """All questions of one [[env]]; nothing is read before the first instance is wanted."""

    splits = ("train", "val")

    def __init__(self, env: Env) -> None:
        self.env = env
        self.options = (worlds.Gsm8k if env.name == "gsm8k" else worlds.Questions).model_validate(env.options)
        self._right = RULES[self.options.rule]

    def distinct(self, split: str, seed: int) -> Iterator[Instance]:
        """Shuffled by `seed`."""
        if split not in self.splits:
            raise ConfigError(f"no split {split!r}; there are: {', '.join(self.splits)}")
        order = list(self._instances[split])
        random.Random(f"questions {seed}").shuffle(order)
        yield from order

    def episode(self, instance: Instance, stream: int) -> Exchange:
        truth = instance.payload

        def judge(text: str, turn: int) -> Verdict:
            if self._right(text, truth):
                return Verdict(0.5 ** (turn - 1), success=True)
            unreadable = self.options.rule == "numeric" and number_of(text) is None
            return Verdict(0.0, done=False, invalid=unreadable, feedback=WRONG)

        user = f"{instance.key}\n{self.options.instruction}".strip()
        return Exchange(self.env, opening(self.options.system, user), judge)

    def task(self, instance: Instance) -> dict[str, str]:
        return {"question": instance.key, "ground_truth": instance.payload}

    def floor(self, instance: Instance, actions: int) -> None:
        """Nobody knows what random text scores."""

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Nor whether every question has a right answer on file."""

    @cached_property
    def _instances(self) -> dict[str, list[Instance]]:
        options = self.options
        training = self._read(options.train_split)
        if options.val_split:
            held_out = self._read(options.val_split)
        else:
            shares = {"val": options.val_percent, "train": 100 - options.val_percent}
            held_out = {text: one for text, one in training.items() if split_of(text, shares) == "val"}
        kept = [one for text, one in training.items() if text not in held_out]
        return {"train": kept, "val": list(held_out.values())}

    def _read(self, split: str) -> dict[str, Instance]:
        """Distinct questions by their text, the first of equal ones; ConfigError for a row without an answer."""
        options = self.options
        found: dict[str, Instance] = {}
        for number, row in enumerate(tables.rows(options.path, options.subset, split)):
            where = f"{options.path} ({split}), row {number + 1}"
            if missing := [key for key in (options.question_key, options.answer_key) if key not in row]:
                raise ConfigError(f"{where}: no {' and no '.join(missing)} (there are: {', '.join(row)})")
            text, truth = str(row[options.question_key]).strip(), str(row[options.answer_key])
            if options.rule == "numeric" and number_of(truth) is None:
                raise ConfigError(f"{where}: the answer has no number: {truth[:80]!r}")
            found.setdefault(text, Instance(text, number, truth, 1))
        return found
