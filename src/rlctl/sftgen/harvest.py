"""`rlctl sft-gen --from-pool RUN`: the best trajectories of a run as demonstrations (rejection sampling).

    trajectories/ --> scored? enough reward? seen before? --> the best of each group --> token rows, by prompt
                                                                                        train.jsonl, test.jsonl

A row has the very tokens that were sampled, never text encoded anew, so `rlctl sft` trains on what the policy did.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.data import files
from rlctl.data.choose import Choice, chosen, versions
from rlctl.data.rows import Decode, Row, Source, source
from rlctl.data.text import decoder
from rlctl.errors import ConfigError
from rlctl.train.data.samples import BadSteps, TrainSample, build
from rlctl.wire.arrays import pack_ids
from rlctl.wire.samples import TRAIN, Trajectory


@dataclass(frozen=True, slots=True)
class Wish:
    """Which trajectories are kept."""

    min_reward: float | None = None
    best: int = 0
    """Most trajectories of one group; 0: all."""
    test_size: int = 0
    """Prompts held out: their rows go to the test file."""
    env: str = ""
    """Only this environment (its tag); empty: all."""
    form: str = "jsonl"


@dataclass(frozen=True, slots=True)
class Kept:
    """A trajectory with its samples."""

    trajectory: Trajectory
    samples: list[TrainSample]
    number: int
    """In the order of endings."""

    @property
    def prompt(self) -> str:
        """Of the instance: digest of the tokens of the first prompt."""
        return hashlib.sha256(self.trajectory.steps[0].prompt_ids).hexdigest()

    @property
    def rank(self) -> tuple[float, int]:
        return (-(self.trajectory.reward or 0.0), self.number)


def harvest(run_dir: Path, out_dir: Path, wish: Wish) -> dict[str, Any]:
    """Write train and test file with their manifests; returns counts: they add up to `trajectories`."""
    _check(wish)
    counts = dict.fromkeys(("trajectories", "unscored", "below", "unusable", "duplicates", "not_best", "kept"), 0)
    kept = list(_best(run_dir, wish, counts))
    if not kept:
        raise ConfigError(f"{run_dir}: no trajectory is kept ({', '.join(f'{n} {c}' for n, c in counts.items() if c)})")
    held_out = set(sorted({one.prompt for one in kept})[: wish.test_size])
    where, decode = source(run_dir), decoder(run_dir)
    about = {"run": where.run, "config_hash": where.config_hash, "wish": asdict(wish)}
    summary: dict[str, Any] = {"run": where.run, **counts}
    for split in ("train", "test"):
        mine = [one for one in kept if (one.prompt in held_out) == (split == "test")]
        rows = (row for one in mine for row in _rows(one, split, where, decode))
        summary[split] = files.write(out_dir / f"{split}.{wish.form}", rows, about)["rows"]
    return summary


def _best(run_dir: Path, wish: Wish, counts: dict[str, int]) -> Iterator[Kept]:
    """In the order of endings."""
    groups: dict[str, list[Kept]] = {}
    seen: set[bytes] = set()
    for ended in chosen(run_dir, Choice(channel=TRAIN, env=wish.env), None):
        one = ended.trajectory
        counts["trajectories"] += 1
        if one.status != "complete" or one.reward is None or not one.steps:
            counts["unscored"] += 1
        elif wish.min_reward is not None and one.reward < wish.min_reward:
            counts["below"] += 1
        else:
            try:
                samples = build(one.uid, one.steps)
            except BadSteps:
                counts["unusable"] += 1
                continue
            tokens = b"".join(pack_ids(part) for sample in samples for part in (sample.token_ids, sample.loss_mask))
            if (digest := hashlib.sha256(tokens).digest()) in seen:
                counts["duplicates"] += 1
                continue
            seen.add(digest)
            group = groups.setdefault(one.prompt_uid, [])
            group.append(Kept(one, samples, ended.number))
            if wish.best and len(group) > wish.best:
                group.remove(max(group, key=lambda member: member.rank))
                counts["not_best"] += 1
    counts["kept"] = sum(map(len, groups.values()))
    yield from sorted((one for group in groups.values() for one in group), key=lambda one: one.number)


def _rows(one: Kept, split: str, where: Source, decode: Decode) -> Iterator[Row]:
    trajectory = one.trajectory
    low, high = versions(trajectory)
    for sample in one.samples:
        yield {
            "token_ids": sample.token_ids.tolist(),
            "loss_mask": sample.loss_mask.astype(int).tolist(),
            "text": decode(pack_ids(sample.token_ids)),
            "split": split,
            "env": trajectory.env,
            "reward": trajectory.reward,
            "success": trajectory.facts.success,
            "uid": trajectory.uid,
            "prompt_uid": trajectory.prompt_uid,
            "policy_versions": [low, high],
            "run": where.run,
            "config_hash": where.config_hash,
        }


def _check(wish: Wish) -> None:
    problems = [
        f"--{name} must be at least 0, not {value}"
        for name, value in (("best", wish.best), ("test-size", wish.test_size))
        if value < 0
    ]
    if wish.form not in ("jsonl", "parquet"):
        problems.append(f"--format {wish.form}: the rows of a run are tokens, so there are jsonl and parquet")
    if problems:
        raise ConfigError(problems)
