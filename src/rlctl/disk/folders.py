"""Durable folders: filled beside their final name, synced to disk, renamed; whole or not there."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rlctl.disk.files import sync, temporary


def write_whole(path: Path, fill: Callable[[Path], None]) -> None:
    """Call `fill(temporary folder)`, sync all files in it, and rename it to `path`, replacing what was there."""
    fill(begin(path))
    finish(path)


def begin(path: Path) -> Path:
    """The empty temporary folder of `path`."""
    folder = temporary(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def finish(path: Path) -> None:
    """Sync everything in the temporary folder of `path` and give it its name, replacing what was there."""
    folder = temporary(path)
    for item in folder.rglob("*"):
        sync(item)
    sync(folder)
    if path.exists():
        shutil.rmtree(path)
    folder.rename(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Delete a folder so that half of it is never found under its name."""
    folder = temporary(path)
    shutil.rmtree(folder, ignore_errors=True)
    path.rename(folder)
    shutil.rmtree(folder)


def prune(folder: Path, prefix: str, keep: int, spare: str = "") -> list[str]:
    """Delete all but the `keep` highest-numbered `PREFIX<number>` folders, never `spare`; names of the deleted."""
    gone = [p for p in numbered(folder, prefix)[:-keep] if p.name != spare]
    for path in gone:
        remove(path)
    return [path.name for path in gone]


def numbered(folder: Path, prefix: str) -> list[Path]:
    """The folders `PREFIX<number>`, by number."""
    found = [p for p in folder.glob(f"{prefix}*") if p.is_dir() and p.name.removeprefix(prefix).isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(prefix)))
