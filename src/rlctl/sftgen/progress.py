"""A folder of demonstrations in the making: rows as they come, and a manifest from which a killed run goes on.

    train.partial, test.partial    rows, only ever appended to
    manifest.json                  arguments; how far the seeds, the counts and the files (in bytes) are

The manifest is written after the rows it speaks of are on disk. What stands in the files beyond it is cut off and made
again, byte for byte, for rows depend on the arguments only.
"""

import fcntl
import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rlctl.disk.files import write_text
from rlctl.errors import ConfigError
from rlctl.sftgen.rows import FILES
from rlctl.sftgen.sink import Sink

SAVE_EVERY_S = 2.0
"""What a killed run makes again, at most; each save waits for the disk."""
MANIFEST = "manifest.json"
FINISHED = tuple(name + suffix for name in FILES.values() for suffix in (".jsonl", ".parquet"))


class Folder(AbstractContextManager["Folder"]):
    """One process at a time; `arguments` are those the rows depend on."""

    def __init__(self, place: Path, arguments: dict[str, Any], overwrite: bool) -> None:
        self.place = place
        self._arguments: dict[str, Any] = json.loads(json.dumps(arguments))  # as the manifest gives them back
        place.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(place, os.O_RDONLY)
        self._files: dict[str, BinaryIO] = {}
        self._saved = 0.0
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(f"{place}: another process writes demonstrations there") from None
        try:
            if overwrite:
                self.forget()
            self._state = self._known()
        except ConfigError:
            os.close(self._lock)
            raise

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        os.close(self._lock)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Of a run that ended, with its files still there."""
        found: dict[str, Any] | None = self._state.get("summary")
        return found if found and all((self.place / name).is_file() for name in found["files"]) else None

    def partial(self, split: str) -> Path:
        return self.place / f"{FILES[split]}.partial"

    def open(self, sink: Sink, seed: int) -> int:
        """Bring `sink` to where the folder is; returns the seed to go on with (`seed` for a fresh start)."""
        state = {} if "summary" in self._state else self._state
        for split in FILES:
            if not state:  # a finished file may be another name of it
                self.partial(split).unlink(missing_ok=True)
            self._files[split] = file = self.partial(split).open("r+b" if state else "w+b")
            if state:
                self._cut(split, file, state["bytes"][split], sink)
        if state:
            sink.written, sink.counts, sink.bad = state["written"], state["counts"], state["bad"]
            sink.patience.restore(state["patience"])
            seed = state["next_seed"]
        self.save(sink, seed)
        return seed

    def write(self, split: str, rows: bytes) -> None:
        self._files[split].write(rows)

    def save(self, sink: Sink, next_seed: int) -> None:
        """All before `next_seed` is done."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self._note(
            {
                "next_seed": next_seed,
                "written": sink.written,
                "counts": sink.counts,
                "bad": sink.bad,
                "patience": sink.patience.state,
                "bytes": {split: file.tell() for split, file in self._files.items()},
            }
        )
        self._saved = time.monotonic()

    def save_sometimes(self, sink: Sink, next_seed: int) -> None:
        if time.monotonic() - self._saved >= SAVE_EVERY_S:
            self.save(sink, next_seed)

    def finish(self, summary: dict[str, Any]) -> None:
        """The files have their names; only the manifest stays beside them."""
        self._note({"summary": summary})
        for split in FILES:
            self.partial(split).unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove all that this module's users write."""
        for name in (*(self.partial(split).name for split in FILES), *FINISHED, MANIFEST):
            (self.place / name).unlink(missing_ok=True)

    def _known(self) -> dict[str, Any]:
        manifest = self.place / MANIFEST
        if not manifest.is_file():
            if found := [name for name in FINISHED if (self.place / name).exists()]:
                raise ConfigError(
                    f"{self.place} holds {', '.join(found)}, no {MANIFEST}: another --out, or --overwrite"
                )
            return {}
        try:
            state: dict[str, Any] = json.loads(manifest.read_bytes())
            before = dict(_flat(state.pop("arguments")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{manifest} cannot be read ({error}): another --out, or --overwrite") from error
        now = dict(_flat(self._arguments))
        if changed := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
            raise ConfigError(
                f"{self.place} holds demonstrations made with other arguments: "
                + ", ".join(f"{name} was {before.get(name)!r}, not {now.get(name)!r}" for name in changed)
                + "; take another --out, or --overwrite"
            )
        return state

    def _cut(self, split: str, file: BinaryIO, size: int, sink: Sink) -> None:
        """Go back to the manifest's place, and see again the boards that are written."""
        if file.seek(0, os.SEEK_END) < size:
            raise ConfigError(f"{self.partial(split)} is shorter than {MANIFEST} says: use --overwrite")
        file.truncate(size)
        file.seek(0)
        decode = msgspec.json.Decoder(_Board).decode
        sink.seen.update(decode(line).instance for line in file)

    def _note(self, state: dict[str, Any]) -> None:
        text = json.dumps({"arguments": self._arguments, **state}, indent=1)
        write_text(self.place / MANIFEST, f"{text}\n", durable=True)


class _Board(msgspec.Struct):
    instance: str


def _flat(value: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, one in value.items():
        found += _flat(one, f"{before}{key}.") if isinstance(one, dict) else [(f"{before}{key}", one)]
    return found
