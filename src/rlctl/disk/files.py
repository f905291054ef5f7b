"""Files: written beside their name, then renamed, so that nobody sees half; durable ones survive a power cut."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

TEMPORARY = ".tmp"
T = TypeVar("T")


def write_whole(path: Path, write: Callable[[Path], T], durable: bool = False) -> T:
    """What `write(temporary path)` returns; then the file has its name. `durable`: both are synced.

    Whatever goes wrong leaves the old file as it is, and no other.
    """
    file = temporary(path)
    try:
        result = write(file)
        if durable:
            sync(file)
        file.replace(path)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)
    return result


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """A small file, whole or not at all."""
    write_whole(path, lambda file: file.write_text(text, encoding="utf-8"), durable)


def temporary(path: Path) -> Path:
    """Where `path` is filled until it is whole."""
    return path.with_name(path.name + TEMPORARY)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
