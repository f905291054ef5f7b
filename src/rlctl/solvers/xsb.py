"""Sokoban levels in the usual text formats: XSB, SOK (run-length encoding, keys, comments), Boxoban's files.

    text -> blocks of rows that look like a board, with the text around them -> a Room, or what is wrong with it

`#` wall, `@` or `p` player, `+` or `P` player on target, `$` or `b` box, `*` or `B` box on target, `.` or `o` target,
space, `-` or `_` floor. In a run-length encoded row `3#` is `###`, `2(-#)` is `-#-#` and `|` ends a row. All other
lines are text: titles, `; comments`, `:: comments`, `Key: value`, `Comment:` to `Comment-End:`, solutions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlctl.solvers.boards import Geometry, Room, bits

SYMBOLS = {
    **dict.fromkeys("#", "#"),
    **dict.fromkeys("@p", "P"),
    **dict.fromkeys("+P", "S"),
    **dict.fromkeys("$b", "X"),
    **dict.fromkeys("*B", "√"),
    **dict.fromkeys(".o", "O"),
    **dict.fromkeys(" -_", "_"),
}
"""Of the files -> our own."""
MAX_SIDE = 100
_ROW = re.compile(r"(?=.*#)(?:\d*[#@+$*. \-_pPbBo|()])+")
_WALLED = re.compile(r"\s*#+[^#\s].*#\s*|\s*#{2,}\s*")
_GROUP = re.compile(r"(\d*)\(([^()]*)\)")
_RUN = re.compile(r"(\d+)([^\d])")


@dataclass(frozen=True, slots=True)
class Level:
    """One board of a file."""

    line: int
    """Of its first row, from 1."""
    title: str
    room: Room | None
    problem: str = ""
    """Why there is no room, or ""."""


@dataclass(slots=True)
class _Block:
    line: int
    title: str
    rows: list[str] = field(default_factory=list)


def levels(text: str) -> Iterator[Level]:
    """All boards of a file, in its order."""
    for block in _blocks(text):
        try:
            yield Level(block.line, block.title, room([part for row in block.rows for part in unpacked(row)]))
        except ValueError as error:
            yield Level(block.line, block.title, None, str(error))


def _blocks(text: str) -> Iterator[_Block]:
    block, said, comment = None, "", False
    for number, line in enumerate(text.splitlines(), 1):
        key, colon, value = line.strip().partition(":")
        named = key.strip().lower().replace("_", "-").replace(" ", "-") if colon else ""
        if comment or named == "comment":
            comment = not (named in ("comment-end", "commentend") or (named == "comment" and value.strip()))
        elif _ROW.fullmatch(line) or _WALLED.fullmatch(line):
            if block is None or not block.rows or number != block.line + len(block.rows):
                if block:
                    yield block
                block, said = _Block(number, said), ""
            block.rows.append(line)
        elif block and named == "title":
            block.title = value.strip()  # SOK: the keys of a level stand below it
        elif line.strip() and not named and not line.startswith("::"):
            said = line.strip().strip(";'\"").strip()
    if block:
        yield block


def unpacked(row: str) -> list[str]:
    """The rows that a run-length encoded one stands for; ValueError for one that cannot be read."""
    if any(int(count) > MAX_SIDE for count in re.findall(r"\d+", row)):
        raise ValueError(f"a run is longer than {MAX_SIDE} cells")
    while found := _GROUP.search(row):
        row = row[: found.start()] + found[2] * int(found[1] or 1) + row[found.end() :]
        if len(row) > MAX_SIDE**2:
            raise ValueError(f"a side is longer than {MAX_SIDE} cells")
    row = _RUN.sub(lambda run: run[2] * int(run[1]), row)
    if wrong := next((symbol for symbol in row if symbol not in SYMBOLS and symbol != "|"), ""):
        raise ValueError(f"{wrong!r} is no symbol of a board")
    return row.split("|")


def room(rows: list[str]) -> Room:
    """The room of XSB rows, of the same size as they have; ValueError says what is wrong with it.

    What the player can never reach (beyond the walls, or walled in) becomes wall, also boxes on targets there.
    """
    cols = max(map(len, rows))
    geometry = Geometry(len(rows), cols)
    if max(geometry.rows, cols) > MAX_SIDE or min(geometry.rows, cols) < 3:
        raise ValueError(f"{geometry.rows} rows and {cols} columns: a side is 3 to {MAX_SIDE} cells long")
    flat = "".join(SYMBOLS[symbol] for row in rows for symbol in row.ljust(cols))

    def cells(kinds: str) -> int:
        return sum(1 << cell for cell, symbol in enumerate(flat) if symbol in kinds)

    players = list(bits(cells("PS")))
    if len(players) != 1:
        raise ValueError(f"{len(players) or 'no'} player{'s' if players else ''}, one is needed")
    open_, floor, grown = cells("_O√XPS"), 0, 1 << players[0]
    while grown != floor:
        floor = grown
        grown |= (floor << 1 | floor >> 1 | floor << cols | floor >> cols) & open_
        if grown & ~geometry.inner:
            raise ValueError("the walls around the player are not closed")
    boxes, targets = cells("√X"), cells("O√S")
    if boxes & ~floor & ~targets or targets & ~floor & ~boxes:
        raise ValueError("a box or a target is out of the player's reach")
    boxes, targets = boxes & floor, targets & floor
    if boxes.bit_count() != targets.bit_count():
        raise ValueError(f"{boxes.bit_count()} boxes for {targets.bit_count()} targets")
    if boxes == targets:
        raise ValueError("solved from the start" if boxes else "no box")
    return Room(geometry, floor, targets, boxes, players[0])
