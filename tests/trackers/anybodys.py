"""Trackers as anybody may write them (`module:Class`)."""

import json
from pathlib import Path

from rlctl.trackers.tracker import About, Picture, Row


class Lines:
    """A line per row and picture in `got.jsonl`, on disk after a flush."""

    def __init__(self, about: About) -> None:
        self._path = about.folder / "got.jsonl"
        self._lines: list[dict] = [{"opened": about.name, "id": about.id, "project": about.project}]

    def row(self, row: Row) -> None:
        self._lines.append({"series": row.series, "step": row.step, **row.values})

    def picture(self, picture: Picture) -> None:
        self._lines.append({"tag": picture.tag, "step": picture.step, "caption": picture.caption})

    def flush(self) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self._lines)
        self._lines.clear()

    def close(self) -> None:
        self.flush()


class Moody(Lines):
    """Fails at what the file `RUN/mood` names: open, row, picture, flush; "picture 3": only at that step."""

    def __init__(self, about: About) -> None:
        self._mood = about.run_dir / "mood"
        self._fail("open")
        super().__init__(about)

    def _fail(self, *at: str) -> None:
        if self._mood.exists() and self._mood.read_text() in at:
            raise ConnectionError("no one is there")

    def row(self, row: Row) -> None:
        self._fail("row")
        super().row(row)

    def picture(self, picture: Picture) -> None:
        self._fail("picture", f"picture {picture.step}")
        super().picture(picture)

    def flush(self) -> None:
        self._fail("flush")
        super().flush()


class Fatal(Lines):
    """Takes its whole process with it, as a fault in a native library does."""

    def row(self, row: Row) -> None:
        import os

        os._exit(11)


def got(folder: Path) -> list[dict]:
    """What a tracker has written down, without the lines about its opening."""
    path = folder / "got.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "opened" not in line]
