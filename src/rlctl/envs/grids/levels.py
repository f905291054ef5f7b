"""Files of Sokoban levels: every level with its place, the unusable ones with the reason."""

from pathlib import Path
from typing import NamedTuple

from rlctl.errors import ConfigError
from rlctl.solvers.boards import Room
from rlctl.solvers.xsb import levels

KINDS = (".txt", ".xsb", ".sok")


class Collection(NamedTuple):
    """What a file or folder holds."""

    rooms: list[tuple[str, Room]]
    """(FILE:LINE, room), in the order of names and lines; FILE is relative to the folder."""
    problems: tuple[str, ...]
    """FILE:LINE: why that level has no room."""


def read(path: str) -> Collection:
    """All levels of a file, or of the .txt, .xsb and .sok files below a folder; ConfigError where there are none."""
    rooms: list[tuple[str, Room]] = []
    problems: list[str] = []
    for name, file in level_files(path):
        for level in levels(_text(file)):
            place = f"{name}:{level.line}"
            if level.room is None:
                problems.append(f"{place}: {level.problem}" + (f" ({level.title})" if level.title else ""))
            else:
                rooms.append((place, level.room))
    if not rooms:
        raise ConfigError([f"{path}: holds no level that can be played", *problems[:10]])
    return Collection(rooms, tuple(problems))


def level_files(path: str) -> list[tuple[str, Path]]:
    """(name in messages, file); ConfigError where there are none."""
    place = Path(path).expanduser()
    if place.is_file():
        return [(place.name, place)]
    if not place.is_dir():
        raise ConfigError(f"{path}: no such file or folder of levels")
    found = [file for file in sorted(place.rglob("*")) if file.suffix.lower() in KINDS and file.is_file()]
    if not found:
        raise ConfigError(f"{path}: the folder holds no level files ({', '.join(KINDS)})")
    return [(file.relative_to(place).as_posix(), file) for file in found]


def _text(file: Path) -> str:
    """Old collections are Latin-1; in their boards that makes no difference."""
    raw = file.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
