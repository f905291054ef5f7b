"""Files that others read while they are written: beside their name first, then renamed, so that nobody sees half."""

from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary path)`, then give the file its name. Not synced: a power cut may take it."""
    temporary = path.with_name(f"{path.name}.tmp")
    write(temporary)
    temporary.replace(path)


def write_text(path: Path, text: str) -> None:
    """A small file, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
