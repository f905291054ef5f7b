"""Rates of `rlctl sft-gen sokoban`: rooms, plans and whole demonstrations, per second of CPU and of wall.

    python benchmarks/sft_gen.py [--json] [--scale 1.0] [--levels FOLDER [--most 1000]] [--reference FOLDER]

1. Workload W: 6x6 rooms, 1 box, depth 30, seeds from 100,000, 1,000 training and 100 test instances, full prompts.
2. W twenty times as large, and rooms of 8x8 and 10x10 with 2 and 3 boxes, with one and with two processes; and by two
   programs of one process at once, which share nothing: what two cores of this machine give at most.
3. The search on rooms it did not make: W's, and the levels of a folder (`--levels`; e.g. Boxoban's unfiltered ones,
   https://github.com/google-deepmind/boxoban-levels): share solved within a second of CPU each; and, where there are no
   more than `--most`, the demonstrations of all of them with one and with two processes.
4. `--reference`: a checkout of RAGEN of 2025-02 or 2025-03 (the last with `get_shortest_action_path`); its generator of
   rooms and its search, in this process, on the same seeds and rooms.

The reference, measured on 2 cores of an AMD EPYC (Zen 4): 444 to 512 rooms, 1,131 to 1,412 plans (32 k boards expanded)
and 112 to 119 instances a second. Duplicates and boards of RL that are made and not written count as cost here. CPU is
that of all processes; wall only means something on an idle machine.
"""

import argparse
import importlib.util
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.config.serving import Env
from rlctl.envs.grids.caves import cave_room
from rlctl.envs.grids.levels import read
from rlctl.envs.grids.rooms import reference_room
from rlctl.envs.grids.sokoban import Sokoban
from rlctl.sftgen.main import Order, generate
from rlctl.solvers.boards import Geometry, Room, bits
from rlctl.solvers.pushes import solve_by_pushes
from rlctl.solvers.search import solve

SEEDS = range(100_000, 101_000)
BOARDS = 22_562
"""Boards that the reference's search expands on the 1,000 rooms of `ragen_v1`."""
SIX = Geometry(6, 6)
LARGER = ((8, 2), (8, 3), (10, 2), (10, 3))
"""(side, boxes)"""
Rates = dict[str, float]


def best(work: Callable[[], Any], passes: int = 5) -> tuple[float, Any]:
    """Least CPU seconds over `passes`, and the result."""
    times, result = [], None
    for _ in range(passes):
        started = time.process_time()
        result = work()
        times.append(time.process_time() - started)
    return min(times), result


def cpu_of_all() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def written(env: Env, train: int, test: int, workers: int) -> tuple[float, float]:
    """(instances per CPU second, instances per second of wall) of the whole generator."""
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), cpu_of_all()
        summary = generate(Order(env, train, test, SEEDS.start), Path(folder), workers)
        wall, cpu = time.perf_counter() - wall, cpu_of_all() - cpu
    return summary["written"] / cpu, summary["written"] / wall


def parts() -> Rates:
    """Rooms and plans of W, per second of CPU of one process."""
    rates: Rates = {}
    spent, rooms = best(lambda: [reference_room(SIX, 1, 30, seed, walk=False) for seed in SEEDS])
    rates["W: rooms, ragen_v1"] = len(SEEDS) / spent
    spent, _ = best(lambda: [cave_room(SIX, 1, 30, seed) for seed in SEEDS])
    rates["W: rooms with their plan, own"] = len(SEEDS) / spent
    spent, _ = best(lambda: [solve(room, 100) for room in rooms])
    rates["W: plans, ragen_v1"] = len(SEEDS) / spent
    rates["W: boards of the reference's search"] = BOARDS / spent
    return rates


def whole(scale: float) -> Rates:
    """The whole generator."""
    rates: Rates = {}
    for kind in ("own", "ragen", "ragen_v1"):
        env = Env(name="sokoban", rooms=kind, max_actions=100, max_turns=100)
        passes = [written(env, int(1000 * scale), int(100 * scale), 1) for _ in range(3)]
        rates[f"W: instances per CPU second, {kind}"] = max(cpu for cpu, _ in passes)
        rates[f"W: instances per second of wall, {kind}"] = max(wall for _, wall in passes)
    jobs = {"W x 20": ({}, 20_000)}
    jobs |= {
        f"{side}x{side}, {boxes} boxes": ({"rows": side, "cols": side, "boxes": boxes, "search_depth": 60}, 1_000)
        for side, boxes in LARGER
    }
    for name, (options, size) in jobs.items():
        env = Env(name="sokoban", max_actions=100, max_turns=100, **options)
        walls = []
        for workers in (1, 2):
            cpu, wall = written(env, int(size * scale), int(size * scale / 10), workers)
            walls.append(wall)
            rates[f"{name}: per CPU second, {workers} process{'es' * (workers > 1)}"] = cpu
            rates[f"{name}: per second of wall, {workers} process{'es' * (workers > 1)}"] = wall
        rates[f"{name}: two processes against one"] = walls[1] / walls[0]
        rates[f"{name}: two programs at once against one"] = at_once(env, int(size * scale)) / walls[0]
    return rates


def at_once(env: Env, size: int) -> float:
    """Instances per second of wall of two generators that know nothing of one another."""
    with get_context("spawn").Pool(2) as pool:
        pool.map(abs, range(2))  # both have started
        wall = time.perf_counter()
        pool.starmap(written, [(env, size, size // 10, 1)] * 2, chunksize=1)
        wall = time.perf_counter() - wall
    return 2 * (size + size // 10) / wall


def levels(folder: Path, most: int) -> Rates:
    """The searches on own levels: share within a second of CPU, seconds, moves."""
    collection = read(str(folder))
    luck = random.Random(0)
    rooms = [room for _, room in collection.rooms]
    rooms = luck.sample(rooms, most) if len(rooms) > most else rooms
    rates: Rates = {"levels": len(rooms), "levels that cannot be played": len(collection.problems)}
    auto = Sokoban(Env(name="sokoban", max_plan=100_000))
    searches: dict[str, Callable[[Room], Any]] = {
        "auto": lambda room: auto.solved(room)[0],
        "astar": lambda room: solve_by_pushes(room, 100_000),
    }
    for name, search in searches.items():
        spent, moves = [], []
        for room in rooms:
            started = time.process_time()
            found = search(room)
            spent.append(time.process_time() - started)
            if found.outcome == "solved":
                moves.append((spent[-1], len(found.plan)))
        spent.sort()
        rates[f"levels, {name}: share solved within 1 s"] = sum(took <= 1 for took, _ in moves) / len(rooms)
        rates[f"levels, {name}: share solved"] = len(moves) / len(rooms)
        rates[f"levels, {name}: mean ms"] = 1000 * statistics.mean(spent)
        rates[f"levels, {name}: 95th percentile ms"] = 1000 * spent[int(0.95 * (len(spent) - 1))]
        rates[f"levels, {name}: longest ms"] = 1000 * spent[-1]
        rates[f"levels, {name}: mean moves"] = statistics.mean(length for _, length in moves) if moves else 0.0
    return rates | (demonstrated(folder, len(rooms)) if len(collection.rooms) <= most else {})


def demonstrated(folder: Path, count: int) -> Rates:
    """Seconds of wall for `rlctl sft-gen` over all of the levels."""
    env = Env(name="sokoban", levels=str(folder), max_actions=400, max_turns=400)
    seconds = []
    for workers in (1, 2):
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as out:
            generate(Order(env, count, 0, 0, max_depth=400), Path(out), workers)
        seconds.append(time.perf_counter() - started)
    return {
        "levels: seconds of wall, 1 process": seconds[0],
        "levels: seconds of wall, 2 processes": seconds[1],
        "levels: two processes against one": seconds[0] / seconds[1],
    }


def reference(checkout: Path) -> Rates:
    """RAGEN's own functions on the seeds and rooms of W."""
    file = checkout / "ragen" / "env" / "sokoban" / "room_utils.py"
    spec = importlib.util.spec_from_file_location("room_utils", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise SystemExit(f"{file}: not there")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

    def generated(seed: int) -> Any:
        random.seed(seed)
        np.random.seed(seed)
        return theirs.generate_room(dim=(6, 6), num_steps=20, num_boxes=1, search_depth=30)

    rooms = [reference_room(SIX, 1, 30, seed, walk=False) for seed in SEEDS]
    arrays = [_arrays(room) for room in rooms if room is not None]
    spent, _ = best(lambda: [generated(seed) for seed in SEEDS], passes=2)
    rates = {"reference: rooms": len(SEEDS) / spent}
    spent, plans = best(lambda: [theirs.get_shortest_action_path(*pair, MAX_DEPTH=100) for pair in arrays], passes=2)
    rates["reference: plans"] = len(arrays) / spent
    rates["reference: boards of its search"] = BOARDS / spent
    ours = [solve(room, 100).plan for room in rooms if room is not None]
    rates["reference: share of plans equal to ours"] = statistics.mean(
        [action - 1 for action in plan] == list(own) for plan, own in zip(plans, ours, strict=True)
    )
    return rates


def _arrays(room: Room) -> tuple[np.ndarray, np.ndarray]:
    """gym-sokoban's (room_fixed, room_state)."""
    fixed = np.zeros(room.geometry.cells, np.int64)
    fixed[list(bits(room.floor))] = 1
    fixed[list(bits(room.targets))] = 2
    state = fixed.copy()
    state[list(bits(room.boxes & room.targets))] = 3
    state[list(bits(room.boxes & ~room.targets))] = 4
    state[room.player] = 5
    shape = room.geometry.rows, room.geometry.cols
    return fixed.reshape(shape), state.reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of instances")
    parser.add_argument("--levels", type=Path, help="file or folder of levels")
    parser.add_argument("--most", type=int, default=1000, help="levels of it, drawn at random")
    parser.add_argument("--only-levels", action="store_true", help="nothing but --levels")
    parser.add_argument("--reference", type=Path, help="checkout of RAGEN")
    arguments = parser.parse_args()
    work = [] if arguments.only_levels else [parts, partial(whole, arguments.scale)]
    work += [partial(reference, arguments.reference)] if arguments.reference else []
    work += [partial(levels, arguments.levels, arguments.most)] if arguments.levels else []
    rates: Rates = {}
    for part in work:
        found = part()
        rates |= found
        if not arguments.json:
            for name, rate in found.items():
                print(f"{name:52} {rate:12,.2f}", flush=True)
    if arguments.json:
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
