"""Rule rewards: pure functions `(Sample, **args) -> float`.

env      facts.env_reward, the sum of the environment's rewards
format   number of turns whose answer could not be read, to be given a negative weight
exact    1 if the last response equals task[key] (spaces at the ends do not count), else 0
numeric  1 if the number given as the answer equals the one in task[key], else 0
length   0 up to `limit - buffer` characters, 1 from `limit` on, linear between; to be given a negative weight
"""

from collections.abc import Callable

import msgspec

from rlctl.rules import answers
from rlctl.wire.samples import Facts

RewardFunction = Callable[..., float]


class ScoringError(ValueError):
    """A sample cannot be scored; the message says why."""


class Sample(msgspec.Struct, frozen=True):
    """What a reward function sees of an episode."""

    responses: list[str] = []
    """Text of the model's answers, one per Step, special tokens removed; empty if no function in use needs text."""
    task: dict[str, str] = {}
    """What the episode was opened with: ground truth, question, ..."""
    facts: Facts = Facts()

    @property
    def response(self) -> str:
        """The last answer."""
        if not self.responses:
            raise ScoringError("the sample has no response text")
        return self.responses[-1]

    def truth(self, key: str) -> str:
        if key not in self.task:
            raise ScoringError(f"task has no {key!r} (there are: {', '.join(sorted(self.task)) or 'none'})")
        return self.task[key]


def env(sample: Sample) -> float:
    return sample.facts.env_reward


def format_errors(sample: Sample) -> float:
    return float(sample.facts.format_errors)


def exact(sample: Sample, key: str = "ground_truth") -> float:
    return float(answers.exact(sample.response, sample.truth(key)))


def numeric(sample: Sample, key: str = "ground_truth") -> float:
    try:
        return float(answers.numeric(sample.response, sample.truth(key)))
    except ValueError as error:
        raise ScoringError(f"task[{key!r}]: {error}") from None


def length(sample: Sample, limit: int, buffer: int = 0) -> float:
    """`clip((characters - (limit - buffer)) / buffer, 0, 1)` of all responses: the soft overlong punishment of DAPO
    (arXiv 2503.14476, eq. 13) with the opposite sign, in characters.
    """
    over = sum(map(len, sample.responses)) - (limit - buffer)
    return min(1.0, max(0.0, over / buffer if buffer else float(over > 0)))


FUNCTIONS: dict[str, RewardFunction] = {
    "env": env,
    "format": format_errors,
    "exact": exact,
    "numeric": numeric,
    "length": length,
}
WITHOUT_TEXT = frozenset({env, format_errors})
"""These do not look at the responses, so nothing is decoded for them."""
