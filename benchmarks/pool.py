"""Pool throughput through real sockets and a real disk: submit, fetch, memory; one JSON line per measure.

    python benchmarks/pool.py [--steps 100000] [--tokens 640] [--through 1000000] [--no-fsync] [--redis]

The pool runs as its own process (`rlctl pool`), as in a run; the load comes from this process over ZeroMQ. With --redis
its journal is in a redis-server that is started here, with appendonly and appendfsync always (no: --no-fsync).
CPU milliseconds per step are printed beside the rates: they hold on a busy machine, wall rates do not.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from rlctl.telemetry.metrics import read as read_metrics
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.messages import (
    Ack,
    CompleteTrajectory,
    FetchBatch,
    GetStatistics,
    SubmitSteps,
)
from rlctl.wire.samples import Step
from rlctl.wire.sockets import Ask

TURNS = 8
"""Steps of one trajectory."""


def make_step(tokens: int, trajectory: str, index: int) -> Step:
    """`tokens` in all, a fifth of them sampled; fresh bytes each time, as from the wire."""
    response = tokens // 5
    rng = np.random.default_rng(index)
    return Step(
        trajectory_uid=trajectory,
        step_index=index,
        prompt_ids=pack_ids(rng.integers(0, 150_000, tokens - response)),
        response_ids=pack_ids(rng.integers(0, 150_000, response)),
        logprobs=pack_floats(-rng.random(response)),
        versions=[(0, response)],
        parent=index - 1,
    )


def steps_of(count: int, tokens: int, tag: str) -> list[Step]:
    """`count` steps, TURNS per trajectory; arrays are shared between trajectories (the pool gets its own copy)."""
    models = [make_step(tokens, "", index) for index in range(TURNS)]
    fields = [{f: getattr(m, f) for f in m.__struct_fields__} for m in models]
    return [
        Step(**{**fields[i % TURNS], "trajectory_uid": f"{tag}-{i // TURNS:08d}-0123456789abcdef"})
        for i in range(count)
    ]


class Redis:
    """A redis-server of its own."""

    def __init__(self, directory: Path, fsync: bool) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SystemExit("--redis needs redis-server (apt-get install redis-server)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        directory.mkdir()
        self.url = f"redis://127.0.0.1:{port}/0"
        argv = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
        argv += ["--appendonly", "yes", "--appendfsync", "always" if fsync else "no"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        self.usage = psutil.Process(self.process.pid)

    @property
    def cpu_s(self) -> float:
        times = self.usage.cpu_times()
        return times.user + times.system

    @property
    def rss(self) -> int:
        return self.usage.memory_info().rss

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Pool:
    """The process under test."""

    def __init__(self, directory: Path, fsync: bool, redis: Redis | None) -> None:
        self.redis = redis
        settings = {
            "run.dir": str(directory),
            "model.init": "tiny",
            "pool.fsync": str(fsync).lower(),
            "train.groups_per_step": "1000000",
            **({"pool.url": redis.url} if redis else {}),
        }
        (directory / "preset.toml").write_text("")
        argv = [sys.executable, "-m", "rlctl", "pool", "--config", str(directory / "preset.toml")]
        for key, value in settings.items():
            argv += ["-s", f"{key}={value}"]
        self.process = subprocess.Popen(argv)
        self.usage = psutil.Process(self.process.pid)
        ready = directory / "components" / "pool.json"
        for _ in range(600):
            if ready.exists():
                break
            time.sleep(0.05)
        self.url = json.loads(ready.read_text())["url"]

    @property
    def cpu_s(self) -> float:
        times = self.usage.cpu_times()
        return times.user + times.system

    @property
    def rss(self) -> int:
        return self.usage.memory_info().rss

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def report(name: str, **values: Any) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"measure": name, **rounded}), flush=True)


async def submit(pool: Pool, ask: Ask, steps: list[Step], batch: int, in_flight: int, name: str) -> None:
    """Closed loop: `in_flight` questions of `batch` steps each are always out."""
    batches = iter([steps[i : i + batch] for i in range(0, len(steps), batch)])

    async def worker() -> None:
        for one in batches:
            done = await ask.ask(SubmitSteps(one))
            if done.accepted != len(one):
                raise RuntimeError(f"accepted {done.accepted} of {len(one)}")

    rss, cpu, own, start = pool.rss, pool.cpu_s, time.process_time(), time.perf_counter()
    redis_cpu = pool.redis.cpu_s if pool.redis else 0.0
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    wall = time.perf_counter() - start
    report(
        name,
        steps=len(steps),
        in_flight=in_flight,
        steps_per_s=len(steps) / wall,
        pool_cpu_us_per_step=(pool.cpu_s - cpu) / len(steps) * 1e6,
        load_cpu_us_per_step=(time.process_time() - own) / len(steps) * 1e6,
        rss_bytes_per_step=(pool.rss - rss) / len(steps),
        **({"redis_cpu_us_per_step": (pool.redis.cpu_s - redis_cpu) / len(steps) * 1e6} if pool.redis else {}),
    )


async def fetch(pool: Pool, ask: Ask, steps: list[Step], groups: int, batch: int) -> None:
    """Complete and score everything, then lease and acknowledge it batch by batch."""
    uids = list(dict.fromkeys(step.trajectory_uid for step in steps))
    await asyncio.gather(*(ask.ask(CompleteTrajectory(uid, TURNS, reward=1.0)) for uid in uids))
    cpu, start, fetched, took = pool.cpu_s, time.perf_counter(), 0, []
    while fetched < groups:
        began = time.perf_counter()
        leased = await ask.ask(FetchBatch(min(batch, groups - fetched), wait_s=1.0))
        took.append(time.perf_counter() - began)
        outcomes = {t.uid: "trained" for g in leased.groups for t in g.trajectories}
        fetched += len(leased.groups)
        await ask.ask(Ack(leased.lease, outcomes))
    wall = time.perf_counter() - start
    rows = groups * TURNS
    report(
        "fetch and ack",
        rows=rows,
        rows_per_s=rows / wall,
        fetch_ms=float(np.median(took)) * 1e3,
        pool_cpu_us_per_row=(pool.cpu_s - cpu) / rows * 1e6,
    )


async def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        redis = Redis(Path(name) / "redis", not args.no_fsync) if args.redis else None
        pool = Pool(Path(name), not args.no_fsync, redis)
        ask = Ask(pool.url, retry_s=60)
        try:
            few = steps_of(args.steps // 10 // TURNS * TURNS, args.tokens, "single")
            many = steps_of(args.steps // TURNS * TURNS, args.tokens, "batch")
            await submit(pool, ask, few[: len(few) // 10], 1, 1, "submit, single, one at a time")
            await submit(pool, ask, few[len(few) // 10 :], 1, 64, "submit, single")
            await submit(pool, ask, many, 64, 8, "submit, batches of 64")
            stats = (await ask.ask(GetStatistics())).values
            tokens = stats["resident_steps"] * args.tokens
            report(
                "memory",
                rss_bytes_per_token=pool.rss / tokens,
                packed_bytes_per_token=stats["resident_bytes"] / tokens,
                **({"redis_rss_bytes_per_token": redis.rss / tokens} if redis else {}),
            )
            await fetch(pool, ask, many, len(many) // TURNS, 128)
            for part in range(args.through // args.steps):
                again = steps_of(args.steps // TURNS * TURNS, args.tokens, f"through-{part}")
                await submit(pool, ask, again, 64, 8, f"submit, batches of 64, after {(part + 1) * args.steps} steps")
                await fetch(pool, ask, again, len(again) // TURNS, 128)
        finally:
            ask.close()
            pool.stop()
            if redis:
                redis.stop()
        last = list(read_metrics(Path(name) / "metrics" / "pool.jsonl"))[-1]
        report(
            "where the pool's time went", **{k: last[k] for k in ("phase_s", "phase_cpu_s", "process_cpu_s", "commits")}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--through", type=int, default=0, help="then this many more steps, fetched and acknowledged")
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--redis", action="store_true", help="journal in a redis-server started for this")
    parser.add_argument("--dir", help="where the pool writes; default: the system's temporary directory")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(parser.parse_args()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
