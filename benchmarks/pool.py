"""Pool throughput through real sockets and a real disk: submit, fetch to trainable tensors, memory; durable.

    python benchmarks/pool.py [--shapes 512+128,4096+512] [--steps 40000] [--through 1000000] [--no-fsync] [--redis]
                              [--reference DIR --reference-python PY] [--out FILE]

The pool runs as its own process (`rlctl pool`), as in a run; the load comes from this process over ZeroMQ. With
`--reference` the public reference's pool gets the same load under Ray, after it (see pool_reference.py). With
`--redis` the pool's journal is in a redis-server that is started here, with appendonly and appendfsync always.
One JSON line per measure on stdout. CPU microseconds of the pool per step stand beside the rates: they hold on a busy
machine, rates do not. Every Step carries its whole prompt, so every Step is one row of the trainer's tensors.
"""

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import uvloop

from rlctl.config import Config, load
from rlctl.telemetry.memory import keep_freed_memory
from rlctl.telemetry.metrics import read as read_metrics
from rlctl.train.data.batches import minibatches
from rlctl.train.learning.learner import plan_for
from rlctl.train.objective.shaping import shape
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.messages import Ack, CompleteTrajectory, FetchBatch, GetStatistics, SubmitSteps
from rlctl.wire.ports import free_port
from rlctl.wire.samples import Group, Step
from rlctl.wire.sockets import Ask

TURNS, MEMBERS, GROUPS = 8, 4, 4
"""Steps of a trajectory, trajectories of a group, groups of a fetched batch."""
ROWS = TURNS * MEMBERS * GROUPS
SINGLE, SLOW, BATCH = "submit, single", "submit, single, one at a time", "submit, batches of 64"
FULL = "submit, batches of 64, 16 in flight"
"""`SINGLE` has 64 in flight, `BATCH` 4."""
FETCH = "fetch to tensors"
GOAL = 10.0
"""Times the reference's rates."""
BYTES_GOAL = 12.0
"""Memory per resident token."""
SLOWDOWN_GOAL = 0.1
Row = dict[str, Any]


def steps_of(count: int, prompt: int, response: int, tag: str) -> list[Step]:
    """`count` steps; arrays are shared between trajectories here (the pool gets its own copy over the wire)."""
    dice = np.random.default_rng(0)
    arrays = [
        {
            "prompt_ids": pack_ids(dice.integers(0, 150_000, prompt)),
            "response_ids": pack_ids(dice.integers(0, 150_000, response)),
            "logprobs": pack_floats(-dice.random(response)),
        }
        for _ in range(TURNS)
    ]
    return [
        Step(
            trajectory_uid=f"{tag}-{i // TURNS:08d}-0123456789abcdef",
            prompt_uid=f"{tag}-p{i // TURNS // MEMBERS}",
            step_index=i % TURNS,
            versions=[(0, response)],
            **arrays[i % TURNS],  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


class Redis:
    """A redis-server of its own."""

    def __init__(self, directory: Path, fsync: bool) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SystemExit("--redis needs redis-server (apt-get install redis-server)")
        port = free_port()
        directory.mkdir()
        self.url = f"redis://127.0.0.1:{port}/0"
        argv = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
        argv += ["--appendonly", "yes", "--appendfsync", "always" if fsync else "no"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        self.usage = psutil.Process(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Pool:
    """The process under test, and what was measured of it."""

    def __init__(self, directory: Path, fsync: bool, redis: Redis | None, context: int) -> None:
        self.redis = redis
        preset = directory / "preset.toml"
        url = f'url = "{redis.url}"\n' if redis else ""
        preset.write_text(
            f'[run]\ndir = "{directory}"\n[model]\ninit = "tiny"\nmax_context = {context}\n'
            f"[pool]\n{url}fsync = {str(fsync).lower()}\n[train]\ngroups_per_step = 1000000\nprefix_tree = false\n"
        )
        self.config: Config = load([str(preset)], []).config
        self.process = subprocess.Popen([sys.executable, "-m", "rlctl", "pool", "--config", str(preset)])
        self.usage = psutil.Process(self.process.pid)
        ready = directory / "components" / "pool.json"
        while not ready.exists():
            if self.process.poll() is not None:
                raise RuntimeError("the pool did not start")
            time.sleep(0.05)
        self.ask = Ask(json.loads(ready.read_text())["url"], retry_s=60)
        self.rows: list[Row] = []

    @property
    def cpu_s(self) -> float:
        """Of the pool, and of Redis where there is one."""
        times = [one.cpu_times() for one in self._processes]
        return float(sum(one.user + one.system for one in times))

    @property
    def rss(self) -> int:
        """The same for memory."""
        return sum(int(one.memory_info().rss) for one in self._processes)

    @property
    def _processes(self) -> list[psutil.Process]:
        return [self.usage, *([self.redis.usage] if self.redis else [])]

    def report(self, name: str, **values: Any) -> None:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
        self.rows.append({"pool": "rlctl", "measure": name, **rounded})
        print(json.dumps(self.rows[-1]), flush=True)

    def stop(self) -> None:
        self.ask.close()
        self.process.terminate()
        self.process.wait(30)
        if self.redis:
            self.redis.stop()

    async def submit(self, steps: Sequence[Step], batch: int, in_flight: int, name: str) -> None:
        """Closed loop: `in_flight` questions of `batch` steps each are always out."""
        batches = iter([list(steps[i : i + batch]) for i in range(0, len(steps), batch)])

        async def worker() -> None:
            for one in batches:
                done = await self.ask.ask(SubmitSteps(one))
                if done.accepted != len(one):
                    raise RuntimeError(f"accepted {done.accepted} of {len(one)}")

        gc.freeze()  # the load that waits here is nothing that a client would have to scan
        cpu, own, start = self.cpu_s, time.process_time(), time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        wall, count = time.perf_counter() - start, len(steps)
        load_us = (time.process_time() - own) / count * 1e6
        self.report(
            name, steps=count, rate=count / wall, pool_cpu_us=(self.cpu_s - cpu) / count * 1e6, load_cpu_us=load_us
        )

    async def complete(self, steps: Sequence[Step]) -> None:
        """Every trajectory ends with a reward that differs within its group."""
        uids = list(dict.fromkeys(step.trajectory_uid for step in steps))
        for i in range(0, len(uids), 256):
            part = enumerate(uids[i : i + 256])
            await asyncio.gather(
                *(self.ask.ask(CompleteTrajectory(u, TURNS, reward=float(n % MEMBERS))) for n, u in part)
            )

    async def fetch(self, count: int, name: str = FETCH) -> None:
        """Lease, make tensors, acknowledge: `count` steps, batch by batch."""
        cpu, own, start, done = self.cpu_s, time.process_time(), time.perf_counter(), 0
        while done < count:
            leased = await self.ask.ask(FetchBatch(GROUPS, wait_s=1.0))
            outcomes, rows = tensors(leased.groups, self.config)
            if rows != ROWS:
                raise RuntimeError(f"{rows} rows instead of {ROWS}")
            done += rows
            await self.ask.ask(Ack(leased.lease, outcomes))
        wall = time.perf_counter() - start
        self.report(
            name,
            steps=done,
            rate=done / wall,
            pool_cpu_us=(self.cpu_s - cpu) / done * 1e6,
            load_cpu_us=(time.process_time() - own) / done * 1e6,
        )


def tensors(groups: Sequence[Group], config: Config) -> tuple[dict[str, str], int]:
    """What the trainer does with a batch before the forward pass: outcomes, and rows of its tensors."""
    shaped = shape(groups, config.algo, config.model.max_context)
    parts = minibatches(shaped.samples, 1, (0, 0, 0))
    (plan,) = plan_for(parts, config, 1, config.algo.aggregation)
    rows = 0
    for minibatch in plan:
        for micro in minibatch.micros:
            made = [torch.from_numpy(value) for value in vars(micro).values() if isinstance(value, np.ndarray)]
            rows += len(made[0])
    return shaped.outcomes, rows


async def measure(prompt: int, response: int, count: int, through: int, args: argparse.Namespace) -> list[Row]:
    """All measures of one shape."""
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        redis = Redis(Path(name) / "redis", not args.no_fsync) if args.redis else None
        pool = Pool(Path(name), not args.no_fsync, redis, 2 * (prompt + response))
        try:
            few, many = max(1, count // 10 // ROWS) * ROWS, count // ROWS * ROWS
            single = [steps_of(few, prompt, response, tag) for tag in ("warm", "one", "some")]
            await pool.submit(single[0][:ROWS], 1, 1, "warm-up")
            await pool.submit(single[1], 1, 1, SLOW)
            await pool.submit(single[2], 1, 64, SINGLE)
            steps, before = steps_of(many, prompt, response, "batch"), pool.rss
            await pool.submit(steps, 64, 4, BATCH)
            resident = (pool.rss - before) / many
            packed = (await pool.ask.ask(GetStatistics())).values["resident_bytes"] / (many + 2 * few + ROWS)
            pool.report("memory", bytes_per_step=resident, rss_per_token=resident / (prompt + response), packed=packed)
            for part in (single[0][:ROWS], *single[1:], steps):
                await pool.complete(part)
            await pool.fetch(many)
            await pool.fetch(2 * few + ROWS, "the rest")
            more = steps_of(many, prompt, response, "more")
            await pool.submit(more, 64, 16, FULL)
            await pool.complete(more)
            await pool.fetch(many, "the last")
            await passing(pool, many, prompt, response, through)
        finally:
            pool.stop()
        last = list(read_metrics(Path(name) / "metrics" / "pool.jsonl"))[-1]
        pool.report(
            "where the time went", **{k: last[k] for k in ("phase_s", "phase_cpu_s", "process_cpu_s", "commits")}
        )
        return pool.rows


async def passing(pool: Pool, part: int, prompt: int, response: int, through: int) -> None:
    """Let `through` more steps pass, then say how the last part compares to the first."""
    parts = through // part
    for number in range(parts):
        steps = steps_of(part, prompt, response, f"through-{number}")
        passed = f"after {number * part} steps"
        await pool.submit(steps, 64, 4, f"{BATCH}, {passed}")
        await pool.complete(steps)
        await pool.fetch(part, f"{FETCH}, {passed}")
    for name in (BATCH, FETCH) if parts > 1 else ():
        found = [row for row in pool.rows if row["measure"].startswith(f"{name}, after")]
        edge = max(1, len(found) // 5)
        for row in found:  # the load has no past: its own cost says what the machine did meanwhile
            row["pool_cpu_per_load_cpu"] = row["pool_cpu_us"] / row["load_cpu_us"]
        for value, better in (("rate", "higher"), ("pool_cpu_us", "lower"), ("pool_cpu_per_load_cpu", "lower")):
            first, last = (float(np.median([row[value] for row in rows])) for rows in (found[:edge], found[-edge:]))
            slower = first / last - 1 if better == "higher" else last / first - 1
            pool.report(f"slowdown of {name}, by {value}", first=first, last=last, slower=slower, goal=SLOWDOWN_GOAL)


def reference(folder: str, python: str, prompt: int, response: int, count: int) -> list[Row]:
    """The same of the reference, as its own program."""
    program = Path(__file__).with_name("pool_reference.py")
    environment = {**os.environ, "PYTHONPATH": folder, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [python, str(program), str(prompt), str(response), str(count)]
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows = [{"pool": "reference", **json.loads(line)} for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    return rows


def compare(shape_: str, ours: Sequence[Row], theirs: Sequence[Row]) -> list[Row]:
    """Ratios with their goals."""
    mine, other = ({row["measure"]: row for row in rows} for rows in (ours, theirs))
    rows: list[Row] = [
        {
            "shape": shape_,
            "measure": name,
            "rlctl": round(mine[name]["rate"], 1),
            "reference": round(other[name]["rate"], 1),
            "times": round(mine[name]["rate"] / other[name]["rate"], 2),
            "goal": GOAL,
        }
        for name in (SLOW, SINGLE, BATCH, FULL, FETCH)
        if name in other
    ]
    memory = {"shape": shape_, "measure": "bytes per resident token", "goal": BYTES_GOAL}
    rows.append(
        memory | {"rlctl": mine["memory"]["rss_per_token"], "reference": other.get("memory", {}).get("rss_per_token")}
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="512+128,4096+512", help="prompt+response tokens of a step")
    parser.add_argument("--steps", type=int, default=40_000, help="at 640 tokens; fewer where steps are longer")
    parser.add_argument("--through", type=int, default=0, help="then this many more steps, fetched and acknowledged")
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--redis", action="store_true", help="journal in a redis-server started for this")
    parser.add_argument("--dir", help="where the pool writes; default: the system's temporary directory")
    parser.add_argument("--reference", help="a clone of the reference, AgentR1/Claw-R1")
    parser.add_argument("--reference-python", help="an interpreter with what it needs")
    parser.add_argument("--reference-steps", type=int, default=6_000, help="as --steps: it is slower")
    parser.add_argument("--out", type=Path, help="write everything as one JSON file, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the trainer does
    found: list[Row] = []
    for name in args.shapes.split(","):
        prompt, response = map(int, name.split("+"))
        share = min(1.0, 640 / (prompt + response))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            through = args.through if name == args.shapes.split(",")[0] else 0
            ours = runner.run(measure(prompt, response, int(args.steps * share), through, args))
        theirs: list[Row] = []
        if args.reference and args.reference_python:
            count = int(args.reference_steps * share)
            theirs = reference(args.reference, args.reference_python, prompt, response, count)
        else:
            print("reference skipped: give --reference DIR and --reference-python PY", file=sys.stderr)
        ratios = compare(name, ours, theirs)
        for row in ratios:
            print(json.dumps(row), flush=True)
        found += [{"shape": name, **row} for row in (*ours, *theirs)] + ratios
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
