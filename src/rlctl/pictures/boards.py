"""Boards of characters as pictures: every cell a tile, drawn from simple shapes.

A tile is a function that draws on the square (0, 0, 1, 1) through `Brush`, which scales. Every tile is drawn
larger than it is and reduced, so edges are smooth.
"""

from collections.abc import Callable

from PIL import Image, ImageDraw

TILE = 44
"""Pixels of a cell's side."""
LARGEST = 640
"""Pixels of a picture's longer side, at most: tiles of larger boards are smaller."""
OVERSAMPLING = 4
COLOURS = 64
"""Of a stored picture; few colours make small files."""

Point = tuple[float, float]
ICE, ICE_LINE, WATER, WATER_RIM = "#e4f0f8", "#c9deec", "#2d5573", "#a9c6da"
FLOOR, FLOOR_LINE, WALL, WALL_LIGHT = "#f1ece1", "#e2dacb", "#58606e", "#7b8494"
WOOD, WOOD_DARK, DONE, DONE_DARK = "#c98f4e", "#96642c", "#6fae72", "#3f7a48"
PLAYER, SKIN, FLAG, MARK, ALARM = "#3a5fcd", "#f3cfae", "#2f9e5b", "#d1663f", "#c63d3d"


class Brush:
    """Draws shapes given in fractions of one cell."""

    def __init__(self, draw: ImageDraw.ImageDraw, side: int) -> None:
        self._draw, self._side = draw, side

    def _at(self, *points: Point) -> list[Point]:
        return [(x * self._side, y * self._side) for x, y in points]

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: str, radius: float = 0.0, line: str = "") -> None:
        width = max(1, round(0.04 * self._side)) if line else 0
        corners = self._at((x0, y0), (x1, y1))
        self._draw.rounded_rectangle(corners, radius * self._side, fill=fill, outline=line or None, width=width)

    def disc(self, x: float, y: float, rx: float, ry: float, fill: str, line: str = "") -> None:
        width = max(1, round(0.05 * self._side)) if line else 0
        corners = self._at((x - rx, y - ry), (x + rx, y + ry))
        self._draw.ellipse(corners, fill=fill, outline=line or None, width=width)

    def shape(self, points: list[Point], fill: str) -> None:
        self._draw.polygon(self._at(*points), fill=fill)

    def line(self, start: Point, end: Point, fill: str, width: float) -> None:
        self._draw.line(self._at(start, end), fill=fill, width=max(1, round(width * self._side)))


Tile = Callable[[Brush], None]


def _player(brush: Brush, shirt: str = PLAYER) -> None:
    brush.disc(0.5, 0.87, 0.22, 0.06, "#00000030")
    brush.box(0.33, 0.45, 0.67, 0.86, shirt, radius=0.14)
    brush.disc(0.5, 0.32, 0.17, 0.17, SKIN, line="#8a6a4d")


def _ice(brush: Brush) -> None:
    brush.box(0, 0, 1, 1, ICE_LINE)
    brush.box(0.02, 0.02, 0.98, 0.98, ICE, radius=0.06)
    brush.line((0.2, 0.36), (0.38, 0.18), "#ffffff", 0.04)
    brush.line((0.3, 0.46), (0.4, 0.36), "#ffffff", 0.03)


def _hole(brush: Brush) -> None:
    _ice(brush)
    brush.disc(0.5, 0.54, 0.38, 0.33, WATER_RIM)
    brush.disc(0.5, 0.56, 0.33, 0.27, WATER)


def _flag(brush: Brush) -> None:
    _ice(brush)
    brush.disc(0.36, 0.86, 0.16, 0.05, "#b9d0de")
    brush.line((0.34, 0.16), (0.34, 0.86), "#6b5a45", 0.06)
    brush.shape([(0.37, 0.15), (0.8, 0.3), (0.37, 0.47)], FLAG)


def _drowned(brush: Brush) -> None:
    _hole(brush)
    brush.disc(0.5, 0.5, 0.15, 0.15, SKIN, line="#8a6a4d")
    brush.box(0.3, 0.6, 0.7, 0.7, WATER)
    for start, end in (((0.14, 0.14), (0.3, 0.3)), ((0.3, 0.14), (0.14, 0.3))):
        brush.line(start, end, ALARM, 0.07)


def _arrived(brush: Brush) -> None:
    _flag(brush)
    _player(brush, FLAG)


def _floor(brush: Brush) -> None:
    brush.box(0, 0, 1, 1, FLOOR_LINE)
    brush.box(0.02, 0.02, 0.98, 0.98, FLOOR)


def _wall(brush: Brush) -> None:
    brush.box(0, 0, 1, 1, WALL)
    for row, shift in ((0.0, 0.0), (0.34, 0.25), (0.68, 0.0)):
        for column in (0.0, 0.5):
            left = column + shift
            for start, end in ((left, min(left + 0.46, 1.0)), (0.0, max(0.0, left + 0.46 - 1.0))):
                if end - start > 0.05:
                    brush.box(start + 0.02, row + 0.03, end, row + 0.3, WALL_LIGHT, radius=0.03)


def _target(brush: Brush) -> None:
    _floor(brush)
    brush.disc(0.5, 0.5, 0.24, 0.24, FLOOR, line=MARK)
    brush.disc(0.5, 0.5, 0.1, 0.1, MARK)


def _crate(brush: Brush, face: str = WOOD, edge: str = WOOD_DARK) -> None:
    _floor(brush)
    brush.box(0.12, 0.12, 0.88, 0.88, face, radius=0.05, line=edge)
    brush.line((0.2, 0.2), (0.8, 0.8), edge, 0.06)
    brush.line((0.8, 0.2), (0.2, 0.8), edge, 0.06)


def _over(under: Tile) -> Tile:
    def tile(brush: Brush) -> None:
        under(brush)
        _player(brush)

    return tile


def tiles() -> dict[str, dict[str, Tile]]:
    """Kind of environment -> character -> tile (the characters are those of the environments' `symbols`)."""
    return {
        "frozenlake": {
            **{"_": _ice, "O": _hole, "G": _flag, "P": _over(_ice)},
            **{"X": _drowned, "√": _arrived},
        },
        "sokoban": {
            **{"#": _wall, "_": _floor, "O": _target, "X": _crate},
            **{"√": lambda brush: _crate(brush, DONE, DONE_DARK), "P": _over(_floor), "S": _over(_target)},
        },
    }


def drawn(env: str) -> bool:
    """Whether boards of this kind of environment have tiles; the others are shown as text."""
    return env in tiles()


def board(env: str, text: str, tile: int = TILE) -> Image.Image:
    """The picture of a board, rows of one character per cell; a character without a tile is a ValueError."""
    known, rows = tiles()[env], text.split("\n")
    side = min(tile, max(4, LARGEST // max(len(rows), *map(len, rows))))
    whole = Image.new("RGB", (max(map(len, rows)) * side, len(rows) * side), WALL if env == "sokoban" else ICE)
    if strange := set(text) - {*known, "\n"}:
        raise ValueError(f"no tile for {sorted(strange)} in a board of {env}")
    painted = {character: _painted(known[character], side) for character in set(text) - {"\n"}}
    for y, row in enumerate(rows):
        for x, character in enumerate(row):
            whole.paste(painted[character], (x * side, y * side))
    return whole


def _painted(tile: Tile, side: int) -> Image.Image:
    large = Image.new("RGB", (side * OVERSAMPLING, side * OVERSAMPLING))
    tile(Brush(ImageDraw.Draw(large, "RGBA"), side * OVERSAMPLING))
    return large.resize((side, side), Image.Resampling.LANCZOS)


def reduced(picture: Image.Image) -> Image.Image:
    """With a palette of COLOURS, for storing."""
    return picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
