"""`summary.json`: what a run came to, from the files in its directory, whatever way it ended."""

import json
from pathlib import Path
from typing import Any

from rlctl.disk.files import write_text
from rlctl.telemetry.metrics import read
from rlctl.up.history.snapshot import alive, folded, last_row
from rlctl.wire.samples import OUTCOMES

PHASES = {"rollout": "agent", "train": "trainer"}
"""Process -> the phase it is called in the report; engine-0, engine-1, ... are "engine", the others keep their name."""

Json = dict[str, Any]


def summarize(run_dir: Path) -> Json:
    """The contents of `summary.json` (keys: see docs/run-directory.md)."""
    metrics = run_dir / "metrics"
    train = list(read(metrics / "train.jsonl"))
    last = train[-1] if train else {}
    life = lifetime(run_dir)
    return {
        "status": life["status"],
        "error": life["error"],
        "name": life["name"],
        "steps": int(last.get("step", 0)),
        "steps_wanted": life["steps"],
        "policy_version": int(last.get("policy_version", last_row(metrics / "pool.jsonl").get("policy_version", 0))),
        "wall_s": round(life["wall_s"], 3),
        "eval": evals(run_dir),
        "samples": samples(last_row(metrics / "pool.jsonl")),
        "rewards": rewards(last_row(metrics / "reward.jsonl")),
        "tokens": {"trained": sum(int(row.get("tokens", 0)) for row in once_per_step(train))},
        "checkpoint": checkpoint(run_dir),
        "best": best(run_dir),
        "phases": phases(run_dir),
        "trackers": trackers(run_dir),
    }


def write(run_dir: Path) -> Json:
    """Write `summary.json` and return it."""
    summary = summarize(run_dir)
    path = run_dir / "summary.json"
    write_text(path, json.dumps(summary, indent=1) + "\n")
    return summary


# ---------------------------------------------------------------- the life of the run (up.json)


def lifetime(run_dir: Path) -> Json:
    """What `rlctl up` noted about this run; status "killed" when it is gone without having noted its end."""
    path = run_dir / "up.json"
    if not path.exists():
        return {"status": "unknown", "error": "", "wall_s": 0.0, "name": run_dir.name, "steps": 0, "pid": 0}
    life: Json = json.loads(path.read_text(encoding="utf-8"))
    if life["status"] == "running" and not alive(life["pid"], path.stat().st_mtime):
        life["status"] = "killed"
    if life["status"] in ("running", "killed"):
        newest = [last_row(file).get("t", 0.0) for file in (run_dir / "metrics").glob("*.jsonl")]
        life["wall_s"] += max(0.0, max(newest, default=0.0) - life["started"])
    return life


# ---------------------------------------------------------------- parts


def evals(run_dir: Path) -> list[Json]:
    """Every measurement in the order of the steps; the first is before RL."""
    kept = {(row["step"], row["env"], row["name"]): row for row in read(run_dir / "metrics" / "eval.jsonl")}
    rows = sorted(kept.values(), key=lambda row: row["step"])  # stable: the order of measurement within a step
    keys = ("step", "env", "name", "temperature", "success_rate", "success_se", "floor", "ceiling", "mean_reward")
    # the wire leaves out fields that have their default
    defaults = {"floor": None, "ceiling": None, "failed": 0, "policy_version": 0, "seconds": 0.0}
    return [{key: {**defaults, **row}[key] for key in (*keys, "episodes", *list(defaults)[2:])} for row in rows]


def samples(pool: Json) -> Json:
    """One number per outcome from the pool's last statistics; with `open` they add up to `created`."""
    counts = {name: int(pool.get(f"train.{name}", 0)) for name in ("created", *OUTCOMES)}
    return counts | {"open": counts["created"] - sum(counts[name] for name in OUTCOMES)}


def rewards(reward: Json) -> Json:
    """Mean of every reward part and what could not be scored, since the reward process last started."""
    return {
        "scored": int(reward.get("scored", 0)),
        "parts": reward.get("parts", {}),
        "errors": reward.get("errors", {}),
    }


def once_per_step(rows: list[Json]) -> list[Json]:
    """One row per training step: of a step that was done again after a crash, the last one counts."""
    return list({row["step"]: row for row in rows}.values())


def checkpoint(run_dir: Path) -> str | None:
    """Path of the newest checkpoint."""
    numbered = [path for path in (run_dir / "checkpoints").glob("step_*") if path.name[5:].isdigit()]
    newest = max(numbered, key=lambda path: int(path.name[5:]), default=None)
    return str(newest.absolute()) if newest else None


def best(run_dir: Path) -> Json | None:
    """{"checkpoint": path, "step", "metric", "value"} of the best checkpoint by `ckpt.best_metric`."""
    path = run_dir / "checkpoints" / "best.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    folder = path.parent / found["checkpoint"]
    return {**found, "checkpoint": str(folder.absolute()), "step": int(folder.name.rpartition("_")[2])}


def trackers(run_dir: Path) -> dict[str, Json]:
    """What every tracker has got so far, what it refused, what waits and why (see rlctl.trackers.mirror)."""
    component = run_dir / "components" / "track.json"
    state = json.loads(component.read_text(encoding="utf-8"))["state"] if component.exists() else ""
    died = {"error": "its process died, see logs/track.log"} if state == "dead" else {}
    keys = ("rows", "pictures", "skipped", "failures", "waiting", "error")
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((run_dir / "trackers").glob("*.json"))]
    return {note["name"]: {key: note[key] for key in keys} | died for note in notes}


def phases(run_dir: Path) -> dict[str, Json]:
    """Phase -> {"cpu_s", "wall_s"} of its processes as `rlctl up` measured them, and the trainer's own parts.

    CPU seconds include descendants (torchrun's workers, vLLM's). Wall seconds are those the process lived, the longest
    of several engines.
    """
    rows = list(read(run_dir / "metrics" / "up.jsonl"))
    names = list(dict.fromkeys(key.removeprefix("cpu.") for row in rows for key in row if key.startswith("cpu.")))
    found: dict[str, Json] = {}
    for name in names:
        phase = "engine" if name.startswith("engine-") else PHASES.get(name, name)
        entry = found.setdefault(phase, {"cpu_s": 0.0, "wall_s": 0.0})
        entry["cpu_s"] = round(entry["cpu_s"] + folded(rows, f"cpu.{name}"), 3)
        entry["wall_s"] = round(max(entry["wall_s"], folded(rows, f"wall.{name}")), 3)
    parts = trainer_parts(list(read(run_dir / "metrics" / "train.jsonl")))
    if parts and "trainer" in found:
        found["trainer"]["parts"] = parts
    return found


def trainer_parts(rows: list[Json]) -> dict[str, Json]:
    """Where the trainer's time went: rows carry `NAME_s` (wall) and `NAME_cpu_s` of one step each."""
    parts: dict[str, Json] = {}
    for row in rows:
        for key, value in row.items():
            if not key.endswith("_cpu_s"):
                continue
            name = key.removesuffix("_cpu_s")
            entry = parts.setdefault(name, {"cpu_s": 0.0, "wall_s": 0.0})
            entry["cpu_s"] = round(entry["cpu_s"] + value, 3)
            entry["wall_s"] = round(entry["wall_s"] + row.get(f"{name}_s", 0.0), 3)
    return parts
