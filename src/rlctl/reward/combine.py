"""The reward of a sample: `sum(weight * part)` over named parts. A part that fails makes a Score with its error.

A part that scores single Steps counts with their sum. An environment's `format_penalty` is a part of its own, whatever
the [reward] sections say: it is added here and nowhere else.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.reward.cache import Cache, Cached, version
from rlctl.reward.functions import FUNCTIONS, Sample
from rlctl.reward.judging import Disrm, Genrm
from rlctl.reward.parts import CONTAINED, RUN_PROGRAM, SAMPLE, Code, Contained, Plain
from rlctl.reward.values import Failure, Part, Value
from rlctl.sandbox.client import Sandbox
from rlctl.wire.samples import Score

PENALTY = "format_penalty"
"""Key of Facts.extra, and name of the part."""


@dataclass(frozen=True)
class Reward:
    """The configured parts and what they share."""

    parts: list[Part]
    sandbox: Sandbox | None = None
    cache: Cache | None = None

    @property
    def needs_text(self) -> bool:
        return any(part.needs_text for part in self.parts)

    def score(self, uids: Sequence[str], samples: Sequence[Sample]) -> list[Score]:
        return score(uids, samples, self.parts)

    def counts(self) -> dict[str, int]:
        """`reward.NAME: KIND` -> failures, those that count as 0 included."""
        return {f"reward.{p.name}: {kind}": number for p in self.parts for kind, number in sorted(p.counts.items())}

    def close(self) -> None:
        for part in self.parts:
            part.close()
        if self.sandbox:
            self.sandbox.close()
        if self.cache:
            self.cache.close()


def build(config: Config, cache_file: Path | None = None) -> Reward:
    """The parts of `config.reward`; without any section, the environment's reward. ConfigError for a wrong function."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # where a function of one's own may be
    if not config.reward:
        return Reward([Plain("env", FUNCTIONS["env"])])
    targets = [target for name, one in config.reward.items() if (target := _target(name, one.kind, one.fn))]
    sandbox = None
    if targets:
        workers = max(one.workers for one in config.reward.values())
        try:
            sandbox = Sandbox([*targets, SAMPLE], workers)
        except ConfigError as error:
            wrong = next((n for n, one in config.reward.items() if repr(one.fn) in str(error)), "")
            raise ConfigError(f"reward.{wrong}.fn = {error}") from error
    cache = Cache(cache_file) if cache_file else None
    parts: list[Part] = []
    for name, one in config.reward.items():
        part: Part
        if one.kind == "disrm":
            part = Disrm(name, one)
        elif one.kind == "genrm":
            part = Genrm(name, one, config.gateway_url)
        elif one.fn in FUNCTIONS:
            parts.append(Plain(name, FUNCTIONS[one.fn], one.weight, one.args))
            continue
        else:
            assert sandbox
            part = Code(name, one, sandbox) if one.fn == "code" else Contained(name, one, sandbox)
        parts.append(Cached(part, version(one), cache) if cache else part)
    return Reward(parts, sandbox, cache)


def _target(name: str, kind: str, fn: str) -> str:
    """What the sandbox has to import for a part; empty if it needs no sandbox."""
    if kind != "rule" or fn in FUNCTIONS:
        return ""
    if fn == "code":
        return RUN_PROGRAM
    if fn not in CONTAINED and ":" not in fn:
        known = ", ".join((*FUNCTIONS, *CONTAINED, "code"))
        raise ConfigError(f"reward.{name}.fn = {fn!r}: no such function; there are: {known}, module:function")
    return CONTAINED.get(fn, fn)


def score(uids: Sequence[str], samples: Sequence[Sample], parts: Sequence[Part]) -> list[Score]:
    """One Score per sample; never raises for what a function or model does."""
    columns = {part.name: part.values(samples) for part in parts}
    weights = {part.name: part.weight for part in parts}
    return [
        _combined(uid, sample, {name: values[i] for name, values in columns.items()}, weights)
        for i, (uid, sample) in enumerate(zip(uids, samples, strict=True))
    ]


def _combined(uid: str, sample: Sample, values: dict[str, Value], weights: dict[str, float]) -> Score:
    totals: dict[str, float] = {}
    steps: list[float] = []
    for name, value in values.items():
        if isinstance(value, Failure):
            return Score(uid, error=f"reward.{name}: {value.kind}: {value.text}")
        if isinstance(value, list):
            weighted = [weights[name] * one for one in value]
            steps = [a + b for a, b in zip(steps, weighted, strict=True)] if steps else weighted
        totals[name] = math.fsum(value) if isinstance(value, list) else value
    total = math.fsum(weights[name] * value for name, value in totals.items())
    if penalty := sample.facts.extra.get(PENALTY, 0.0):
        total, totals = total + penalty, totals | {PENALTY: penalty}
    return Score(uid, total, totals, step_rewards=steps)
