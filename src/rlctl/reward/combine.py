"""The reward of a sample: `sum(weight * part)` over named parts. A part that fails makes a Score with its error.

An environment's `format_penalty` is a part of its own, `format_penalty`, whatever the [reward] sections say: it is
added here and nowhere else.
"""

import importlib
import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.config.serving import Reward
from rlctl.errors import ConfigError
from rlctl.reward.functions import FUNCTIONS, WITHOUT_TEXT, RewardFunction, Sample
from rlctl.wire.messages import Score

PENALTY = "format_penalty"
"""Key of Facts.extra, and name of the part."""


@dataclass(frozen=True)
class Part:
    """One [reward.NAME]."""

    name: str
    function: RewardFunction
    weight: float = 1.0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_text(self) -> bool:
        return self.function not in WITHOUT_TEXT


def parts(sections: Mapping[str, Reward]) -> list[Part]:
    """The configured parts; without any [reward] section, the environment's reward."""
    if not sections:
        return [Part("env", FUNCTIONS["env"])]
    return [Part(name, _function(name, one.fn), one.weight, one.args) for name, one in sections.items()]


def _function(name: str, spec: str) -> RewardFunction:
    """A built-in by name, or module:function (the working directory is searched too)."""
    if spec in FUNCTIONS:
        return FUNCTIONS[spec]
    module, colon, attribute = spec.partition(":")
    if not colon:
        known = ", ".join(FUNCTIONS)
        raise ConfigError(f"reward.{name}.fn = {spec!r}: no such function; there are: {known}, module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"reward.{name}.fn = {spec!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"reward.{name}.fn = {spec!r} is {type(found).__name__}, not a function")
    return found


def score(uid: str, sample: Sample, combined: Sequence[Part]) -> Score:
    """Never raises for what a function does: raising, NaN, infinity and a wrong type have a name in `Score.error`."""
    values: dict[str, float] = {}
    for part in combined:
        try:
            value = part.function(sample, **part.args)
        except (Exception, SystemExit) as error:  # whatever a user's function raises is a fact about this sample
            return Score(uid, error=f"reward.{part.name}: {type(error).__name__}: {error}")
        if not isinstance(value, numbers.Real):
            return Score(uid, error=f"reward.{part.name}: returned {type(value).__name__}, not a number")
        if not math.isfinite(value):
            return Score(uid, error=f"reward.{part.name}: returned {float(value)}")
        values[part.name] = float(value)
    total = math.fsum(part.weight * values[part.name] for part in combined)
    if penalty := sample.facts.extra.get(PENALTY, 0.0):
        return Score(uid, total + penalty, values | {PENALTY: penalty})
    return Score(uid, total, values)
