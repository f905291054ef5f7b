"""`rlctl sft-gen`: optimal demonstrations as chat JSONL, deterministic by seed whatever the number of workers.

    blocks of seeds -> workers (rows.play) -> in the order of the seeds: duplicates out -> train.jsonl, test.jsonl

A worker never decides what is written; that is done here, seed by seed, so the bytes do not depend on who was faster.
Boards come from the splits `sft` and `sft_test`: they meet neither each other nor the boards of RL.
"""

import itertools
import json
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlctl.config.serving import Env
from rlctl.envs.lookup import seeded
from rlctl.envs.splits import Patience, too_few
from rlctl.errors import ConfigError
from rlctl.sftgen.rows import FILES, Block, Record, play

BLOCK = 256
MAX_SEED = 2**31
"""Mersenne Twister of numpy takes seeds of 32 bits; this leaves room for the seeds that follow."""
Progress = Callable[[int, int], None]
Summary = dict[str, Any]


def generate(
    env: Env,
    out_dir: Path,
    train_size: int,
    test_size: int,
    seed: int,
    workers: int = 1,
    max_depth: int = 100,
    thoughts: bool = False,
    episodes: int = 1,
    progress: Progress | None = None,
) -> Summary:
    """Write `train_size` and `test_size` distinct instances, `episodes` rows each, and summary.json; return it.

    `seed` is the first instance seed. Instances that need more than `max_depth` actions, or more than an episode of
    `env` has, are counted and skipped. `progress(written, wanted)` is called after every block. Files get their names
    when complete (until then `NAME.partial`). Raises ConfigError where the environment has too few instances.
    """
    _check(env, train_size, test_size, seed, workers, max_depth, thoughts, episodes)
    seeded(env)
    started = time.perf_counter()
    sink = _Sink({"sft": train_size, "sft_test": test_size})
    _write(out_dir, Block(env, seed, BLOCK, (), max_depth, thoughts, episodes), workers, sink, progress)
    summary = {
        "env": env.model_dump(mode="json"),
        "seed": seed,
        "train": sink.written["sft"],
        "test": sink.written["sft_test"],
        "episodes": episodes,
        "written": sum(sink.written.values()),
        **sink.counts,
        "seeds": sum(sink.written.values()) + sum(sink.counts.values()),
        "workers": workers,
        "seconds": round(time.perf_counter() - started, 3),
    }
    (out_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def _write(out_dir: Path, first: Block, workers: int, sink: "_Sink", progress: Progress | None) -> None:
    """Write both files, under `NAME.partial` until they are complete."""
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = {split: out_dir / f"{name}.jsonl" for split, name in FILES.items()}
    partial = {split: path.with_suffix(".jsonl.partial") for split, path in paths.items()}
    with ExitStack() as stack:
        files = {split: stack.enter_context(path.open("wb")) for split, path in partial.items()}
        for records in _blocks(first, workers, sink):
            for record in records:
                if sink.open_splits() and (split := sink.take(record)):
                    files[split].write(record.rows)
            if progress:
                progress(sum(sink.written.values()), sum(sink.wanted.values()))
            if sink.patience.over and (short := sink.open_splits()):
                raise too_few(first.env, short[0], sink.wanted[short[0]], sink.written[short[0]])
    for split, path in paths.items():
        partial[split].replace(path)


def _check(
    env: Env, train_size: int, test_size: int, seed: int, workers: int, max_depth: int, thoughts: bool, episodes: int
) -> None:
    problems = [
        f"{name} must be at least {least}, not {value}"
        for name, value, least in (
            ("--train-size", train_size, 0),
            ("--test-size", test_size, 0),
            ("--seed", seed, 0),
            ("--workers", workers, 1),
            ("--max-depth", max_depth, 1),
            ("--episodes", episodes, 1),
        )
        if value < least
    ]
    if seed > MAX_SEED:
        problems.append(f"--seed must be at most {MAX_SEED}, not {seed}")
    if thoughts and not env.think:
        problems.append("--thoughts needs an environment that asks for them: -s env.think=true")
    if problems:
        raise ConfigError(problems)


class _Sink:
    """Decides seed by seed what is written, and counts everything else."""

    def __init__(self, wanted: dict[str, int]) -> None:
        self.wanted = wanted
        self.written = dict.fromkeys(wanted, 0)
        self.counts = dict.fromkeys(
            ("duplicates", "unsolvable", "too_deep", "too_large", "no_instance", "other_splits", "surplus"), 0
        )
        """Every seed that was tried and not written: other_splits are boards of RL, surplus those of a full split."""
        self.patience = Patience()
        self._seen: set[str] = set()

    def open_splits(self) -> tuple[str, ...]:
        return tuple(split for split, size in self.wanted.items() if self.written[split] < size)

    def take(self, record: Record) -> str:
        """The split to write this record to, or "" (counted)."""
        reason = self._refused(record)
        self.patience.saw(not reason, reason)
        if reason:
            self.counts[reason] += 1
            return ""
        self._seen.add(record.key)
        self.written[record.split] += 1
        return record.split

    def _refused(self, record: Record) -> str:
        if record.reason:
            return record.reason
        if record.split not in self.wanted:
            return "other_splits"
        if record.key in self._seen:
            return "duplicates"
        return "" if self.written[record.split] < self.wanted[record.split] else "surplus"


def _blocks(first: Block, workers: int, sink: _Sink) -> Iterator[list[Record]]:
    """Blocks of records in the order of their seeds, beginning with `first`, until no split is open."""
    seeds = itertools.count(first.first, first.seeds)

    def block() -> Block:
        return first._replace(first=next(seeds), splits=sink.open_splits())

    if workers == 1:
        played: set[str] = set()
        while sink.open_splits():
            yield play(block(), played)
        return
    # spawn: the caller may hold threads (torch, a progress bar), which a forked child would not survive for sure.
    # Ctrl-C reaches the whole process group; only this process answers it.
    context, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, context, signal.signal, ignore) as pool:
        waiting: deque[Future[list[Record]]] = deque()
        try:
            while sink.open_splits():
                while len(waiting) < 3 * workers:
                    waiting.append(pool.submit(play, block()))
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
