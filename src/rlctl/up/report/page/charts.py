"""Line charts as inline SVG. Pure: numbers in, markup out; colours are the page's (CSS classes c0, c1, ...)."""

import json
import math
from dataclasses import dataclass
from typing import NamedTuple

from rlctl.up.report.page.markup import Html, join, single, tag

MOST_POINTS = 400
"""Of one line; longer ones are drawn as the means of equal stretches."""
TICK_PX = 45
"""Height that one interval of the y axis takes, at least."""
LABEL = 11
"""Height of small print."""


class Point(NamedTuple):
    x: float
    y: float
    error: float = 0.0
    """Standard error; drawn as a bar."""


@dataclass(frozen=True)
class Line:
    name: str
    points: list[Point]
    colour: int = 0
    dashed: bool = False
    marks: bool = False
    """A dot at every point."""
    pale: bool = False
    """Background: the raw values behind a smoothed line."""


@dataclass(frozen=True)
class Chart:
    title: str
    lines: list[Line]
    about: str = ""
    percent: bool = False
    levels: tuple[tuple[str, float], ...] = ()
    """Horizontal lines with their names: floor and ceiling."""
    low: float | None = None
    high: float | None = None
    """Fixed ends of the y axis."""


@dataclass(frozen=True)
class Frame:
    """Where the axes stand, in pixels, and what they span."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x0: float
    x1: float
    marks: list[float]
    """Of the y axis, which spans from the first to the last."""

    def x(self, value: float) -> float:
        share = (value - self.x0) / ((self.x1 - self.x0) or 1.0)
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        share = (value - low) / ((high - low) or 1.0)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)


def figure(chart: Chart, width: int = 340, height: int = 190) -> Html:
    """A chart with its title and legend; the values ride along for the page's script. Nothing without points."""
    lines = [Line(**{**vars(line), "points": thinned(line.points)}) for line in chart.lines if line.points]
    if not lines:
        return Html()
    frame = _frame(chart, lines, width, height)
    spoken = ". ".join(_spoken(line, chart.percent) for line in lines if not line.pale)
    svg = tag(
        "svg",
        tag("title", f"{chart.title}. {spoken}"),
        _grid(frame, chart.percent),
        _levels(frame, chart),
        join(_line(frame, line) for line in lines),
        single("line", class_="cursor", x1=0, x2=0, y1=frame.top, y2=frame.height - frame.bottom, visibility="hidden"),
        viewBox=f"0 0 {width} {height}",
        role="img",
        class_="chart",
    )
    named = [line for line in lines if line.name]
    legend = [_key(line) for line in named] if len(named) > 1 or chart.levels else []
    data = {
        "left": frame.left,
        "right": width - frame.right,
        "width": width,
        "percent": chart.percent,
        "x": [frame.x0, frame.x1],
        "lines": [
            {"name": one.name, "c": one.colour, "p": [[round(v, 6) for v in point] for point in one.points]}
            for one in lines
            if not one.pale
        ],
    }
    return tag(
        "figure",
        tag("figcaption", tag("strong", chart.title), tag("span", *legend, class_="legend"), tag("p", chart.about)),
        svg,
        data_chart=json.dumps(data, separators=(",", ":")),
    )


def thinned(points: list[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points: the means of equal stretches."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / most)
    return [_mean(points[i : i + size]) for i in range(0, len(points), size)]


def _mean(points: list[Point]) -> Point:
    return Point(*(sum(values) / len(points) for values in zip(*points, strict=True)))


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that cover low to high."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(s * power for s in (1, 2, 5, 10) if span / (s * power) <= about)
    first = math.floor(low / step + 1e-9)
    return [round(i * step, 12) for i in range(first, math.ceil(high / step - 1e-9) + 1)]


def number(value: float, percent: bool = False) -> str:
    if percent:
        return f"{100 * value:.3g}%"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _frame(chart: Chart, lines: list[Line], width: float, height: float) -> Frame:
    points = [point for line in lines for point in line.points]
    lows = [p.y - p.error for p in points] + [value for _, value in chart.levels]
    highs = [p.y + p.error for p in points] + [value for _, value in chart.levels]
    low = min(lows) if chart.low is None else chart.low
    high = max(highs) if chart.high is None else chart.high
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    marks = ticks(low, high, int(height // TICK_PX))
    x0, x1 = min(p.x for p in points), max(p.x for p in points)
    if x0 == x1:
        x0, x1 = x0 - 1, x1 + 1
    left = 12 + 6.2 * max(len(number(mark, chart.percent)) for mark in marks)
    right = 100 if chart.levels else 10
    return Frame(width, height, left, right, 10, 24, x0, x1, marks)


def _grid(frame: Frame, percent: bool) -> Html:
    parts = []
    for mark in frame.marks:
        y = frame.y(mark)
        parts.append(single("line", class_="grid", x1=frame.left, x2=frame.width - frame.right, y1=y, y2=y))
        parts.append(tag("text", number(mark, percent), x=frame.left - 6, y=y + 4, text_anchor="end"))
    for mark in ticks(frame.x0, frame.x1):
        if frame.x0 <= mark <= frame.x1 and mark == int(mark):
            parts.append(tag("text", number(mark), x=frame.x(mark), y=frame.height - 6, text_anchor="middle"))
    return join(parts)


def _levels(frame: Frame, chart: Chart) -> Html:
    """Dashed lines with their names in the margin at the right, moved apart where they would touch."""
    parts, before = [], math.inf
    for name, value in sorted(chart.levels, key=lambda level: level[1]):
        y = frame.y(value)
        label = min(y + 4, before - LABEL - 2)
        before = label
        right = frame.width - frame.right
        parts.append(single("line", class_="level", x1=frame.left, x2=right, y1=y, y2=y))
        parts.append(tag("text", f"{name} {number(value, chart.percent)}", x=right + 6, y=label, class_="level"))
    return join(parts)


def _line(frame: Frame, line: Line) -> Html:
    placed = [(frame.x(p.x), frame.y(p.y), p) for p in line.points]
    kind = f"line c{line.colour}" + (" dashed" if line.dashed else "") + (" pale" if line.pale else "")
    parts = [single("polyline", class_=kind, points=" ".join(f"{x},{y}" for x, y, _ in placed))]
    for x, y, point in placed:
        if point.error:
            top, bottom = frame.y(point.y + point.error), frame.y(point.y - point.error)
            parts.append(single("line", class_=f"error c{line.colour}", x1=x, x2=x, y1=top, y2=bottom))
        if line.marks or len(placed) == 1:
            parts.append(single("circle", class_=f"mark c{line.colour}", cx=x, cy=y, r=3))
    return join(parts)


def _key(line: Line) -> Html:
    kind = f"key c{line.colour}" + (" dashed" if line.dashed else "") + (" pale" if line.pale else "")
    return tag("span", tag("i", class_=kind), line.name)


def _spoken(line: Line, percent: bool) -> str:
    first, last = line.points[0], line.points[-1]
    name = f"{line.name}: " if line.name else ""
    return f"{name}{number(first.y, percent)} at step {first.x:g}, {number(last.y, percent)} at step {last.x:g}"
