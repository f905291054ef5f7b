"""Durable folders: written beside their final name, synced to disk, renamed; either whole or not there."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".tmp"


def write_whole(path: Path, fill: Callable[[Path], None]) -> None:
    """Call `fill(temporary folder)`, sync all files in it, and rename it to `path`, replacing what was there."""
    temporary = path.with_name(path.name + TEMPORARY)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fill(temporary)
    for item in temporary.rglob("*"):
        sync(item)
    sync(temporary)
    if path.exists():
        shutil.rmtree(path)
    temporary.rename(path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """A small file, atomically and durably."""
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(folder: Path, prefix: str, keep: int, spare: str = "") -> list[str]:
    """Delete all but the `keep` highest-numbered `PREFIX<number>` folders, never `spare`; names of the deleted."""
    numbered = [p for p in folder.glob(f"{prefix}*") if p.is_dir() and p.name.removeprefix(prefix).isdigit()]
    numbered.sort(key=lambda p: int(p.name.removeprefix(prefix)))
    gone = [p for p in numbered[:-keep] if p.name != spare]
    for path in gone:
        shutil.rmtree(path)
    return [path.name for path in gone]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
