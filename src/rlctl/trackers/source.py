"""What a run has written that a tracker has not had yet: rows of metrics, episodes as pictures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rlctl.pictures import files
from rlctl.pictures.record import Recorded
from rlctl.telemetry.metrics import read_on
from rlctl.trackers.tracker import Picture, Row

SERIES = ("sft", "train", "eval", "grad_norms")
"""Metrics files whose rows count training steps, so that they make curves. The others (pool, ...) stay here."""


@dataclass(frozen=True)
class Found:
    """Something to send."""

    what: Row | Picture
    name: str
    """The metrics file, or the folder of the episode."""
    mark: int
    """What is noted for `name` when it is sent: bytes of the file, or when the episode was written."""


def news(run_dir: Path, rows: Mapping[str, int], pictures: Mapping[str, int]) -> list[Found]:
    """Rows after the noted bytes, in the order of time, then episodes not noted or written again since."""
    timed = [one for series in SERIES for one in _rows(run_dir, series, rows.get(series, 0))]
    return [one for _, one in sorted(timed, key=lambda pair: pair[0])] + list(_pictures(run_dir, pictures))


def _rows(run_dir: Path, series: str, offset: int) -> Iterator[tuple[float, Found]]:
    """With the time to sort them by, which never goes back within a file, whatever the clock did."""
    latest = 0.0
    for row, end in read_on(run_dir / "metrics" / f"{series}.jsonl", offset):
        latest = max(latest, row["t"])
        yield latest, Found(Row(series, row["step"], row["t"], scalars(series, row)), series, end)


def _pictures(run_dir: Path, known: Mapping[str, int]) -> Iterator[Found]:
    for path in files.records(run_dir):
        folder, written = str(path.parent.relative_to(run_dir)), path.stat().st_mtime_ns
        if known.get(folder) != written and (path.parent / files.ANIMATION).exists():
            yield Found(picture(path, written / 1e9), folder, written)


def scalars(series: str, row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by tag; what is text in it (environment, evaluation, layer) goes into the tag."""
    path = "/".join([series, *(value for value in row.values() if isinstance(value, str))])
    return {
        f"{path}/{key}": float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and key not in ("t", "step")
    }


def picture(path: Path, at: float) -> Picture:
    """The animation beside a record `episode.json`."""
    kept = msgspec.json.decode(path.read_bytes(), type=Recorded)
    turns = f"{len(kept.turns)} turn{'s' if len(kept.turns) != 1 else ''}"
    end = f"failed: {kept.error}" if kept.error else "success" if kept.success else "no success"
    caption = f"{kept.series}, step {kept.step}: {end}, reward {kept.reward:g}, {turns}"
    tag = f"{files.FOLDER}/{path.parent.parent.parent.name}/{path.parent.name}"
    return Picture(tag, kept.step, at, path.parent / files.ANIMATION, caption)
