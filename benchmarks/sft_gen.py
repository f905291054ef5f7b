"""Rates of `rlctl sft-gen sokoban`: rooms, plans and whole demonstrations per second of CPU.

    python benchmarks/sft_gen.py [--json]

Workload: 6x6 rooms, 1 box, depth 30, seeds from 100,000, 1,000 training and 100 test instances, full prompts. The
reference (RAGEN, 2025-02, measured on 2 cores of an AMD EPYC Zen 4): 512 rooms, 1,412 plans (32 k boards expanded) and
112 to 119 instances a second. Duplicates and boards of RL that are generated and not written count as cost here.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlctl.config.serving import Env
from rlctl.envs.caves import cave_room
from rlctl.envs.rooms import reference_room
from rlctl.sftgen.main import generate
from rlctl.solvers.boards import Geometry
from rlctl.solvers.search import solve

SEEDS = range(100_000, 101_000)
BOARDS = 22_562
"""Boards that the reference's search expands on the 1,000 rooms of `ragen_v1`."""


def best(work: Callable[[], Any], passes: int = 5) -> tuple[float, Any]:
    """Least CPU seconds over `passes`, and the result."""
    times, result = [], None
    for _ in range(passes):
        started = time.process_time()
        result = work()
        times.append(time.process_time() - started)
    return min(times), result


def measure(folder: Path) -> dict[str, float]:
    """Rates by name, each per second of CPU of one process."""
    six = Geometry(6, 6)
    rates: dict[str, float] = {}
    spent, rooms = best(lambda: [reference_room(six, 1, 30, seed, walk=False) for seed in SEEDS])
    rates["rooms, ragen_v1"] = len(SEEDS) / spent
    spent, _ = best(lambda: [cave_room(six, 1, 30, seed) for seed in SEEDS])
    rates["rooms with their plan, own"] = len(SEEDS) / spent
    spent, _ = best(lambda: [solve(room, 100) for room in rooms])
    rates["plans, ragen_v1"] = len(SEEDS) / spent
    rates["boards of the reference's search"] = BOARDS / spent
    for kind in ("own", "ragen", "ragen_v1"):
        env = Env(name="sokoban", rooms=kind, max_actions=100, max_turns=100)
        spent, summary = best(partial(generate, env, folder, 1000, 100, SEEDS.start), passes=3)
        rates[f"instances written, {kind}"] = summary["written"] / spent
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(Path(folder))
    if arguments.json:
        print(json.dumps(rates))
        return
    for name, rate in rates.items():
        print(f"{name:36} {rate:12,.0f} /s")


if __name__ == "__main__":
    main()
