"""What a part of the reward makes of a sample: a number, a number for each Step, or a failure with a name."""

import math
import numbers
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rlctl.reward.functions import Sample

FAILURES = ("raised", "wrong_type", "nan", "timeout", "memory", "crash", "no_score", "unreachable")


class Failure(msgspec.Struct, frozen=True):
    """The sample cannot be scored by this part."""

    kind: str
    """One of FAILURES."""
    text: str


Value = float | list[float] | Failure


class Part(Protocol):
    """One [reward.NAME]."""

    name: str
    weight: float
    needs_text: bool
    """Whether Sample.responses must be filled."""
    counts: dict[str, int]
    """Failures by kind, those that count as a reward of 0 included."""

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        """One for each sample, in order; never raises for what a function or model does."""

    def close(self) -> None:
        """End processes and connections."""


def checked(value: object, steps: int) -> Value:
    """`value` as it came back from a function; lists need one number for each of `steps` responses."""
    if isinstance(value, list | tuple):
        if len(value) != steps:
            return Failure("wrong_type", f"returned {len(value)} numbers for {steps} responses")
        several = [checked(one, steps) for one in value]
        return next((one for one in several if isinstance(one, Failure)), None) or [
            one for one in several if isinstance(one, float)
        ]
    if not isinstance(value, numbers.Real):
        return Failure("wrong_type", f"returned {type(value).__name__}, not a number")
    return float(value) if math.isfinite(value) else Failure("nan", f"returned {float(value)}")
