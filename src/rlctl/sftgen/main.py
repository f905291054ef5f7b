"""`rlctl sft-gen`: optimal demonstrations as a stream, deterministic by seed whatever the number of workers.

    blocks of seeds -> workers (rows.Player) -> in the order of the seeds: sink -> train.partial, test.partial
                                                                                      | order, form (shapes)
                                                                                      v
                                                                                train.jsonl, test.jsonl

A worker never decides what is written; that is done here, seed by seed, so the bytes do not depend on who was faster.
A killed run goes on where it was (progress). Boards come from the splits `sft` and `sft_test`: they meet neither each
other nor the boards of RL.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rlctl
from rlctl.config.serving import Env
from rlctl.disk.files import write_text
from rlctl.envs.grids.levels import level_files
from rlctl.envs.lookup import seeded
from rlctl.envs.splits import too_few
from rlctl.errors import ConfigError
from rlctl.sftgen.progress import Folder
from rlctl.sftgen.rows import FILES, Recipe
from rlctl.sftgen.shapes import CURRICULA, FORMATS, shape, suffix
from rlctl.sftgen.sink import Sink
from rlctl.sftgen.workers import Blocks, played

MAX_SEED = 2**31
"""Mersenne Twister of numpy takes seeds of 32 bits; this leaves room for the seeds that follow."""
Progress = Callable[[int, int], None]
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """What the rows depend on: the same order gives the same bytes."""

    env: Env
    train_size: int
    test_size: int
    seed: int
    """First instance seed."""
    max_depth: int = 100
    thoughts: bool = False
    episodes: int = 1
    form: str = "jsonl"
    curriculum: str = "none"

    def arguments(self) -> dict[str, Any]:
        """As the manifest keeps them; of own levels the content counts."""
        found: dict[str, Any] = {
            "rlctl": rlctl.__version__,
            "env": self.env.model_dump(mode="json"),
            **{name: getattr(self, name) for name in ("train_size", "test_size", "seed", "max_depth", "thoughts")},
            **{name: getattr(self, name) for name in ("episodes", "form", "curriculum")},
        }
        if levels := self.env.options.get("levels"):
            digest = hashlib.sha256()
            for name, file in level_files(levels):
                digest.update(f"{name}\n".encode() + file.read_bytes())
            found["levels_sha256"] = digest.hexdigest()
        return found

    def check(self, workers: int) -> None:
        """ConfigError with all that is wrong."""
        least = {"train-size": 0, "test-size": 0, "seed": 0, "workers": 1, "max-depth": 1, "episodes": 1}
        values = {**{name: getattr(self, name.replace("-", "_"), 0) for name in least}, "workers": workers}
        problems = [
            f"--{name} must be at least {bound}, not {values[name]}"
            for name, bound in least.items()
            if values[name] < bound
        ]
        if self.seed > MAX_SEED:
            problems.append(f"--seed must be at most {MAX_SEED}, not {self.seed}")
        if self.thoughts and not self.env.think:
            problems.append("--thoughts needs an environment that asks for them: -s env.think=true")
        if self.form not in FORMATS:
            problems.append(f"--format {self.form}: there are {', '.join(FORMATS)}")
        if self.curriculum not in CURRICULA:
            problems.append(f"--curriculum {self.curriculum}: there are {', '.join(CURRICULA)}")
        if problems:
            raise ConfigError(problems)


def generate(
    order: Order, out_dir: Path, workers: int = 1, overwrite: bool = False, progress: Progress | None = None
) -> Summary:
    """Write the distinct instances of `order`, `episodes` rows each, and summary.json; return it.

    Instances that need more than `max_depth` actions, or more than an episode of the environment has, are counted and
    skipped. `progress(written, wanted)` is called after every block. A folder where the same order was begun is
    completed, one where it was finished is left as it is; one with another order is refused unless `overwrite`. Raises
    ConfigError where the environment has too few instances (own levels may be fewer than asked for).
    """
    order.check(workers)
    family = seeded(order.env)
    with Folder(out_dir, order.arguments(), overwrite) as folder:
        if folder.summary is not None:
            return folder.summary
        started = time.perf_counter()
        sink = Sink({"sft": order.train_size, "sft_test": order.test_size})
        _write(order, folder, family.seeds_end, workers, sink, progress)
        names = {split: name + suffix(order.form) for split, name in FILES.items()}
        for split, name in names.items():
            shape(folder.partial(split), out_dir / name, order.form, order.curriculum)
        bad = [*family.problems, *sink.bad]
        summary = {
            "env": order.env.model_dump(mode="json"),
            "seed": order.seed,
            "train": sink.written["sft"],
            "test": sink.written["sft_test"],
            "episodes": order.episodes,
            "written": sum(sink.written.values()),
            **sink.counts,
            "seeds": sum(sink.written.values()) + sum(sink.counts.values()),
            "bad_levels": len(bad),
            "bad": bad,
            "files": list(names.values()),
            "workers": workers,
            "seconds": round(time.perf_counter() - started, 3),
        }
        write_text(out_dir / "summary.json", json.dumps(summary, indent=1) + "\n", durable=True)
        folder.finish(summary)
        return summary


def _write(order: Order, folder: Folder, end: int | None, workers: int, sink: Sink, progress: Progress | None) -> None:
    """All rows into the partial files; seeds are below `end`."""
    seed = folder.open(sink, order.seed)
    recipe = Recipe(order.env, order.max_depth, order.thoughts, order.episodes)
    with closing(played(recipe, Blocks(seed, end, sink, workers), workers)) as blocks:
        for records in blocks:
            for record in records:
                if sink.open_splits() and (split := sink.take(record)):
                    folder.write(split, record.rows)
            seed += len(records)
            folder.save_sometimes(sink, seed)
            if progress:
                progress(sum(sink.written.values()), sum(sink.wanted.values()))
            if not sink.open_splits():
                break
            if sink.patience.over and end is None:
                short = sink.open_splits()[0]
                folder.forget()
                raise too_few(order.env, short, sink.wanted[short], sink.written[short])
    folder.save(sink, seed)
