"""Learning curves of GRPO, PPO with critic, RLOO and DAPO on FrozenLake, from the same start within a seed.

    python benchmarks/learning.py FOLDER [--seeds 1 2 3] [--algorithms grpo ppo rloo dapo] [--out FILE]

Per seed one supervised warm start of the preset, stopped at its measured success; then one RL run per algorithm from
that model. What FOLDER holds already is not run again, so an interrupted study goes on, and a part of it can be asked
for alone. The table (JSON) and the curves (PNG beside it) are of all runs in FOLDER. Held-out maps, temperature 1.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlctl.telemetry.metrics import read
from rlctl.up.report import curve

Json = dict[str, Any]
PRESET = "frozenlake-cpu"
ALGORITHMS: dict[str, tuple[str, list[str]]] = {
    "grpo": (PRESET, ["algo.clip_high=0.2", 'algo.aggregation="seq_mean_token_mean"']),
    "ppo": ("frozenlake-ppo-cpu", []),
    "rloo": (PRESET, ['algo.advantage="rloo"', "algo.clip_high=0.2", 'algo.aggregation="seq_mean_token_sum"']),
    "dapo": (PRESET, ["algo.clip_high=0.28", 'algo.aggregation="token_mean"', "algo.dynamic_sampling=2"]),
}
"""Preset and what is laid over it. GRPO as published but without KL; RLOO with the clipped surrogate, as several
minibatches are made of a batch; DAPO: clip-higher, token mean, dynamic sampling (answers are too short to be overlong).
"""
SHOWN = ("entropy", "zero_variance_share", "explained_variance", "value_loss", "staleness_mean", "clip_high_fraction")
"""Metrics of training steps that the table keeps as means over a quarter of the run."""


def up(preset: str, run_dir: Path, settings: list[str]) -> None:
    """One `rlctl up` to its end, resumed where one was interrupted; its output in RUN_DIR.log."""
    command = [sys.executable, "-m", "rlctl", "up"]
    if (run_dir / "resolved.toml").exists():
        command += ["--resume", str(run_dir)]
    else:
        command.append(preset)
        for setting in [f"run.dir={run_dir}", *settings]:
            command += ["-s", setting]
    with run_dir.with_suffix(".log").open("a") as log:
        if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
            raise SystemExit(f"{' '.join(command)} failed; see {log.name}")


def ended(run_dir: Path) -> bool:
    path = run_dir / "summary.json"
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["status"] == "ok"


def warm_start(folder: Path, seed: int) -> Path:
    """The model that every algorithm of this seed begins with."""
    run_dir = folder / f"start-{seed}"
    if not ended(run_dir):
        up(PRESET, run_dir, [f"run.seed={seed}", "run.steps=1", "monitor.pictures=0", _evals(0, 256)])
    return run_dir / "sft" / "model"


def learn(options: argparse.Namespace, algorithm: str, seed: int) -> None:
    run_dir = options.folder / f"{algorithm}-{seed}"
    if ended(run_dir):
        return
    preset, settings = ALGORITHMS[algorithm]
    start = warm_start(options.folder, seed)
    common = [
        f"run.seed={seed}",
        f"run.steps={options.steps}",
        f"train.groups_per_step={options.groups}",
        'model.init=""',
        f"model.path={start}",
        "sft.max_steps=0",
        "monitor.pictures=0",
        _evals(options.every, options.episodes),
    ]
    up(preset, run_dir, common + settings + options.set)


def _evals(every: int, episodes: int) -> str:
    return f'eval=[{{name="val", every={every}, episodes={episodes}, temperature=1.0}}]'


# ---------------------------------------------------------------- the table


def facts(run_dir: Path) -> Json:
    """Curve and costs of one run."""
    algorithm, _, seed = run_dir.name.rpartition("-")
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    rows = list({row["step"]: row for row in read(run_dir / "metrics" / "train.jsonl")}.values())
    kept = ("step", "success_rate", "success_se", "episodes", "floor", "ceiling", "env", "temperature")
    evals = [{key: row[key] for key in kept} for row in summary["eval"]]
    quarters = [rows[i * len(rows) // 4 : (i + 1) * len(rows) // 4] for i in range(4)]
    metrics = {name: [_mean([row[name] for row in part if name in row]) for part in quarters] for name in SHOWN}
    return {
        "algorithm": algorithm,
        "seed": int(seed),
        "steps": summary["steps"],
        "wall_s": round(summary["wall_s"], 1),
        "cpu_s": round(sum(phase["cpu_s"] for phase in summary["phases"].values()), 1),
        "trajectories": sum(row["trajectories"] for row in rows),
        "eval": evals,
        "quarters": {name: values for name, values in metrics.items() if values[-1] is not None},
    }


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def table(runs: list[Json]) -> Json:
    """Algorithm -> step -> mean success over the seeds with its standard error, and every seed's."""
    found: Json = {}
    for algorithm in dict.fromkeys(run["algorithm"] for run in runs):
        mine = [run for run in runs if run["algorithm"] == algorithm]
        for step in sorted({row["step"] for run in mine for row in run["eval"]}):
            rows = {run["seed"]: row for run in mine for row in run["eval"] if row["step"] == step}
            rates = [row["success_rate"] for row in rows.values()]
            error = math.sqrt(sum(row["success_se"] ** 2 for row in rows.values())) / len(rows)
            found.setdefault(algorithm, {})[step] = {
                "success": sum(rates) / len(rates),
                "se": error,
                "seeds": {seed: [row["success_rate"], row["success_se"]] for seed, row in rows.items()},
            }
    return found


def show(found: Json) -> None:
    for algorithm, steps in found.items():
        cells = [f"{step}: {100 * one['success']:.1f} ± {100 * one['se']:.1f}" for step, one in steps.items()]
        print(f"{algorithm:8s} {'   '.join(cells)}   (of {len(next(iter(steps.values()))['seeds'])} seeds)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--algorithms", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=16, help="groups of 8 per training step")
    parser.add_argument("--every", type=int, default=15, help="training steps between evaluations")
    parser.add_argument("--episodes", type=int, default=256, help="held-out maps of an evaluation")
    parser.add_argument("-s", "--set", action="append", default=[], help="section.key=value over every RL run")
    parser.add_argument("--out", type=Path, help="JSON file of the table; the curves stand beside it as .png")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        warm_start(options.folder, seed)
        for algorithm in options.algorithms:
            learn(options, algorithm, seed)
    names = [options.folder / f"{algorithm}-{seed}" for algorithm in ALGORITHMS for seed in range(100)]
    runs = [facts(run_dir) for run_dir in names if ended(run_dir)]
    found = table(runs)
    show(found)
    if options.out and runs:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        head = {"date": time.strftime("%Y-%m-%d"), **machine, "groups_of_8": options.groups, "settings": ALGORITHMS}
        text = json.dumps({**head, "table": found, "runs": runs}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")
        series = {algorithm: [run["eval"] for run in runs if run["algorithm"] == algorithm] for algorithm in found}
        curve.compare(series, "FrozenLake 4x4: algorithms from the same start", options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
