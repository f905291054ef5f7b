"""Which checkpoints stay: the newest ones, and the best by a measured value.

`checkpoints/best.json` names the best one: {"checkpoint": "step_N", "metric", "value"}.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlctl.config.learning import Ckpt
from rlctl.disk import files, folders
from rlctl.train.weights.checkpoint import PREFIX


def scores(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[int, float]:
    """Step -> `EVAL.KEY` from rows of metrics/eval.jsonl: the mean over the environments of that evaluation.

    Of a step that was measured again the last row counts.
    """
    name, _, key = metric.rpartition(".")
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["name"] == name:
            found.setdefault(row["step"], {})[row["env"]] = row[key]
    return {step: sum(values.values()) / len(values) for step, values in found.items()}


def ranked(steps: Iterable[int], values: Mapping[int, float]) -> list[int]:
    """The steps that have a value, best first; of equal ones the later first."""
    return sorted((step for step in steps if step in values), key=lambda step: (values[step], step), reverse=True)


def tidy(root: Path, settings: Ckpt, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the best checkpoint in `best.json`, then delete those that are neither new nor good; names of the deleted.

    `rows`: of metrics/eval.jsonl.
    """
    steps = sorted(int(path.name.removeprefix(PREFIX)) for path in folders.numbered(root, PREFIX))
    values = scores(rows, settings.best_metric) if settings.best_metric else {}
    best = ranked(steps, values)[: settings.keep_best]
    if best:
        text = {"checkpoint": f"{PREFIX}{best[0]}", "metric": settings.best_metric, "value": values[best[0]]}
        files.write_text(root / "best.json", json.dumps(text), durable=True)
    gone = [step for step in steps[: -settings.keep] if step not in best]
    for step in gone:
        folders.remove(root / f"{PREFIX}{step}")
    return [f"{PREFIX}{step}" for step in gone]
