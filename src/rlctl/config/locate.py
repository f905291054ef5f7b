"""Where a key stands in a TOML text: dotted path -> line number (tomllib gives values but no positions)."""

import re

import tomli

Path = tuple[str, ...]
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every table header and key of a valid TOML text; items of arrays of tables by number."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    rows = text.replace("\r\n", "\n").split("\n")  # TOML knows no other line ends
    at = 0
    while at < len(rows):
        start = at
        at += 1
        if header := _HEADER.match(rows[start]):
            table = _numbered(_parts(header[2]), counts, new_item=header[1] == "[[")
            found.setdefault(table, start + 1)
        elif key := _KEY.match(rows[start]):
            value = key[2]
            while not _complete(value) and at < len(rows):
                value += "\n" + rows[at]
                at += 1
            path = table + _parts(key[1])
            found[path] = start + 1
            _nested(tomli.loads("x =" + value)["x"], path, start + 1, found)
    return found


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _numbered(parts: Path, counts: dict[Path, int], new_item: bool) -> Path:
    """Insert the item number after every name that is an array of tables."""
    if new_item:
        counts[parts] = counts.get(parts, -1) + 1
    path: Path = ()
    for i, part in enumerate(parts):
        path += (part,)
        if (number := counts.get(parts[: i + 1])) is not None:
            path += (str(number),)
    return path


def _complete(value: str) -> bool:
    try:
        tomli.loads("x =" + value)
    except tomli.TOMLDecodeError:
        return False
    return True


def _nested(value: object, path: Path, line: int, found: dict[Path, int]) -> None:
    """Keys inside an inline table or array stand on the line where it begins."""
    items: list[tuple[str, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [(str(i), item) for i, item in enumerate(value)]
    for key, item in items:
        found[(*path, key)] = line
        _nested(item, (*path, key), line, found)
