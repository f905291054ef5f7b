"""Demonstrations of consecutive seeds: what one worker does.

seed -> instance -> (its split wanted?) -> an episode of the family's optimal player -> one JSON line per episode
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Skip, horizon
from rlctl.envs.lookup import seeded

FILES = {"sft": "train", "sft_test": "test"}
"""Split of the boards -> file they are written to."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How seeds are played; everything a worker needs to know once."""

    env: Env
    max_depth: int
    """Actions of the longest plan."""
    thoughts: bool
    episodes: int
    """Rows per instance."""


class Block(NamedTuple):
    """Consecutive seeds."""

    first: int
    seeds: int
    splits: tuple[str, ...]
    """Those whose rows are still wanted."""


class Record(NamedTuple):
    """What became of one seed."""

    reason: str
    """Why it has no instance (base.Reason), or ""."""
    split: str = ""
    key: str = ""
    rows: bytes = b""
    """JSON lines; empty where the split was not wanted."""
    source: str = ""
    """FILE:LINE of an own level."""


class Row(msgspec.Struct, frozen=True):
    """One line of train.jsonl or test.jsonl: a whole episode as a chat."""

    messages: list[dict[str, str]]
    env: str
    seed: int
    instance: str
    """Board text; what splits and duplicates are decided by."""
    plan_length: int
    """Actions of the plan: of a shortest one where `optimal` says so."""
    split: str
    """train or test."""
    success: bool
    """False only where slippery ice beat the optimal player."""
    optimal: bool
    """False where the plan may not be a shortest one (A*)."""
    source: str
    """FILE:LINE of an own level, else empty."""


class Player:
    """Plays blocks, one after the other."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._family = seeded(recipe.env)
        self._deepest = min(recipe.max_depth, horizon(recipe.env))
        self._encode = msgspec.json.Encoder().encode
        self._played: set[str] = set()
        """Boards that have rows already: repetitions get none (nobody will want them)."""

    def play(self, block: Block) -> list[Record]:
        """One record per seed, in order."""
        return [self._record(seed, block.splits) for seed in range(block.first, block.first + block.seeds)]

    def _record(self, seed: int, splits: tuple[str, ...]) -> Record:
        instance = self._family.instance(seed)
        if isinstance(instance, Skip):
            return Record(instance.reason, source=instance.source)
        if instance.shortest > self._deepest:
            return Record("too_deep", source=instance.source)
        split, rows = self._family.split(instance), b""
        if split in splits and instance.key not in self._played:
            self._played.add(instance.key)
            numbers = range(self._recipe.episodes)
            rows = b"".join(self._encode(self._row(instance, number, FILES[split])) + b"\n" for number in numbers)
        return Record("", split, instance.key, rows, instance.source)

    def _row(self, instance: Instance, number: int, split: str) -> Row:
        episode = self._family.demonstrate(instance, number, self._recipe.thoughts)
        return Row(
            messages=episode.messages,
            env=self._recipe.env.name,
            seed=instance.seed,
            instance=instance.key,
            plan_length=instance.shortest,
            split=split,
            success=episode.success,
            optimal=self._family.proven(instance),
            source=instance.source,
        )
