"""Where a run stands, from the files in its directory alone: for live progress, `rlctl status` and the report."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlctl.config import Config
from rlctl.telemetry.metrics import read_on

RECENT = 20
"""Training steps that rates and the time left are averaged over."""


class Rows:
    """The rows of one metrics file, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.rows: list[dict[str, Any]] = []

    def refresh(self) -> list[dict[str, Any]]:
        """All rows so far; a last line still being written waits for the next look."""
        for row, end in read_on(self._path, self._offset):
            self.rows.append(row)
            self._offset = end
        return self.rows


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run; None where nothing was measured yet."""

    stage: str = "start"
    """prepare | start | sft | train"""
    step: int = 0
    steps: int = 0
    reward: float | None = None
    """Mean reward of the last training batch."""
    success: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    """Trained tokens per second of wall time, over the last steps."""
    staleness: float | None = None
    """Mean age of the trained tokens, in policy versions."""
    queue: int | None = None
    """Groups that are ready to train on."""
    version: int | None = None
    eta_s: float | None = None
    evals: tuple[dict[str, Any], ...] = ()
    """The latest row of every [[eval]]."""
    components: dict[str, str] = field(default_factory=dict)
    """Name -> state."""


class Reader:
    """Makes snapshots of one run directory."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config = config
        metrics = run_dir / "metrics"
        self._began = time.time()
        self._files = {name: Rows(metrics / f"{name}.jsonl") for name in ("sft", "train", "pool", "eval")}

    def read(self, components: dict[str, str]) -> Snapshot:
        """The present moment; `components` are the states that the caller knows."""
        rows = {name: file.refresh() for name, file in self._files.items()}
        return snapshot(self._config, rows, components, self._began)


def snapshot(
    config: Config, rows: dict[str, list[dict[str, Any]]], components: dict[str, str], began: float = 0.0
) -> Snapshot:
    """Metrics rows of sft, train, pool and eval -> where the run stands (pure).

    Rates leave out rows from before `began`, of an earlier life of a resumed run.
    """
    recent = {name: [row for row in rows[name][-RECENT - 1 :] if row["t"] >= began] for name in ("sft", "train")}
    stage = _stage(components)
    pool = rows["pool"][-1] if rows["pool"] else {}
    evals = {(row["name"], row["env"]): row for row in rows["eval"]}
    shared: dict[str, Any] = {
        "stage": stage,
        "evals": tuple(evals.values()),
        "components": components,
        "version": _whole(pool.get("policy_version")),
    }
    if stage == "sft":
        last = rows["sft"][-1] if rows["sft"] else {}
        checked = [row["success"] for row in rows["sft"] if row.get("success") is not None]
        return Snapshot(
            **shared,
            step=int(last.get("step", 0)),
            steps=config.sft.max_steps,
            loss=last.get("loss"),
            success=checked[-1] if checked else None,
            tokens_per_s=throughput(recent["sft"]),
        )
    last = rows["train"][-1] if rows["train"] else {}
    step = int(last.get("step", 0))
    pace = seconds_per_step(recent["train"])
    return Snapshot(
        **shared,
        step=step,
        steps=config.run.steps,
        reward=last.get("reward_mean"),
        success=last.get("success"),
        loss=last.get("loss"),
        tokens_per_s=throughput(recent["train"]),
        staleness=last.get("staleness_mean"),
        queue=_whole(pool.get("queue_ready")),
        eta_s=None if pace is None else pace * (config.run.steps - step),
    )


def seconds_per_step(rows: list[dict[str, Any]]) -> float | None:
    """Mean wall seconds of the last steps (rows carry "t" and "step"); None before the second one."""
    recent = rows[-RECENT - 1 :]
    steps = recent[-1]["step"] - recent[0]["step"] if recent else 0
    return (recent[-1]["t"] - recent[0]["t"]) / steps if steps > 0 else None


def throughput(rows: list[dict[str, Any]]) -> float | None:
    """Tokens per wall second over the last steps: those of all rows but the first, which begins the interval."""
    recent = rows[-RECENT - 1 :]
    seconds = recent[-1]["t"] - recent[0]["t"] if recent else 0.0
    return sum(row.get("tokens", 0) for row in recent[1:]) / seconds if seconds > 0 else None


def _stage(components: dict[str, str]) -> str:
    for stage in ("train", "sft", "prepare"):
        if components.get(stage, "waiting") not in ("waiting", "") and (
            stage == "train" or components[stage] in ("starting", "ready")
        ):
            return stage
    return "start"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


# ---------------------------------------------------------------- components on disk


def components(run_dir: Path) -> list[dict[str, Any]]:
    """What the processes wrote about themselves; `state` is "dead" where one is gone without having said so."""
    found = []
    for path in sorted((run_dir / "components").glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        finished = row["state"] in ("done", "finished", "ended")
        if not finished and not alive(row["pid"], path.stat().st_mtime):
            row["state"] = "dead"
        found.append(row)
    return found


def alive(pid: int, written: float) -> bool:
    """Whether the process that had this pid at time `written` still runs (a later process may have the same pid)."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= written + 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def last_row(path: Path) -> dict[str, Any]:
    """The last whole row of a metrics file; {} when there is none."""
    rows = Rows(path).refresh()
    return rows[-1] if rows else {}


def folded(rows: Iterable[dict[str, Any]], key: str) -> float:
    """Total of a counter that starts anew with every restart of its process: the sum of its peaks."""
    total, before = 0.0, 0.0
    for row in rows:
        value = float(row.get(key, before))
        if value < before:
            total += before
        before = value
    return total + before
