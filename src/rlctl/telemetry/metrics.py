"""Metrics: one JSON object per line in `metrics/NAME.jsonl`, flushed at once, readable while the run goes on."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class Metrics:
    """Appends `{"t": unix seconds, **values}`; without a run directory it keeps nothing."""

    def __init__(self, run_dir: Path | None, name: str) -> None:
        self._file: TextIO | None = None
        if run_dir is not None and str(run_dir) not in ("", "."):
            path = run_dir / "metrics" / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, **values: Any) -> None:
        if self._file:
            self._file.write(json.dumps({"t": round(time.time(), 3), **values}) + "\n")

    def close(self) -> None:
        if self._file:
            self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a metrics file; a last line still being written is left out."""
    for row, _ in read_on(path, 0):
        yield row


def read_on(path: Path, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows from byte `offset` on, each with the byte where it ends; a last line still being written is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                offset += len(line)
                yield json.loads(line), offset
