"""Demonstrations of a block of seeds: what one worker does.

seed -> instance -> (its split wanted?) -> an episode of the family's optimal player -> one JSON line per episode
"""

from typing import NamedTuple

import msgspec

from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Skip, horizon
from rlctl.envs.lookup import seeded
from rlctl.envs.seeded import Seeded

FILES = {"sft": "train", "sft_test": "test"}
"""Split of the boards -> file they are written to."""


class Block(NamedTuple):
    """Consecutive seeds and how to play them; everything a worker needs."""

    env: Env
    first: int
    seeds: int
    splits: tuple[str, ...]
    """Those whose rows are still wanted."""
    max_depth: int
    thoughts: bool
    episodes: int
    """Rows per instance."""


class Record(NamedTuple):
    """What became of one seed."""

    reason: str
    """Why it has no instance (base.Reason), or ""."""
    split: str = ""
    key: str = ""
    rows: bytes = b""
    """JSON lines; empty where the split was not wanted."""


class Row(msgspec.Struct, frozen=True):
    """One line of train.jsonl or test.jsonl: a whole episode as a chat."""

    messages: list[dict[str, str]]
    env: str
    seed: int
    instance: str
    """Board text; what splits and duplicates are decided by."""
    plan_length: int
    """Actions of a shortest plan."""
    split: str
    """train or test."""
    success: bool
    """False only where slippery ice beat the optimal player."""


def play(block: Block, played: set[str] | None = None) -> list[Record]:
    """The records of a block, one per seed, in order.

    `played` are boards of blocks before this one; theirs and its own repetitions get no rows (nobody will want them).
    """
    made = seeded(block.env)
    deepest = min(block.max_depth, horizon(block.env))
    encode = msgspec.json.Encoder().encode
    records: list[Record] = []
    played = set() if played is None else played
    for seed in range(block.first, block.first + block.seeds):
        instance = made.instance(seed)
        if isinstance(instance, Skip):
            records.append(Record(instance.reason))
        elif instance.shortest > deepest:
            records.append(Record("too_deep"))
        else:
            split, rows = made.split(instance), b""
            if split in block.splits and instance.key not in played:
                played.add(instance.key)
                rows = b"".join(
                    encode(_row(block, made, instance, number, FILES[split])) + b"\n"
                    for number in range(block.episodes)
                )
            records.append(Record("", split, instance.key, rows))
    return records


def _row(block: Block, made: Seeded, instance: Instance, number: int, split: str) -> Row:
    episode = made.demonstrate(instance, number, block.thoughts)
    return Row(episode.messages, block.env.name, instance.seed, instance.key, instance.shortest, split, episode.success)
