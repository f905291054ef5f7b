"""Live progress on stderr: a table on a terminal, a plain line every `monitor.print_every_s` elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlctl.up.history.snapshot import Snapshot

COLOURS = {"ready": "green", "done": "green", "starting": "yellow", "waiting": "dim", "dead": "red bold"}
REFRESH_S = 0.5


class Progress(Protocol):
    """Shows snapshots while a run goes on."""

    def __enter__(self) -> "Progress": ...

    def __exit__(self, *why: Any) -> None: ...

    def show(self, read: Callable[[], Snapshot]) -> None:
        """Called often; reads a snapshot only when it is time to show one."""


def progress(console: Console, title: str, every_s: float, clock: Callable[[], float] = time.monotonic) -> Progress:
    """The right one for where `console` writes."""
    return LiveTable(console, title, clock) if console.is_terminal else Lines(console, every_s, clock)


class Lines:
    """One plain line every `every_s` seconds, and one whenever the stage changes."""

    def __init__(self, console: Console, every_s: float, clock: Callable[[], float]) -> None:
        self._console = console
        self._every_s = every_s
        self._clock = clock
        self._next = clock()
        self._shown = ""
        self._looked = 0.0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *why: Any) -> None:
        return None

    def show(self, read: Callable[[], Snapshot]) -> None:
        now = self._clock()
        if now < self._next and now < self._looked + REFRESH_S:
            return
        self._looked = now
        moment = read()
        if now >= self._next or moment.stage != self._shown:
            self._console.print(line(moment), markup=False, highlight=False, soft_wrap=True)
            self._next = now + self._every_s
            self._shown = moment.stage


class LiveTable:
    """A table that is drawn again in place."""

    def __init__(self, console: Console, title: str, clock: Callable[[], float]) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._title = title
        self._clock = clock
        self._next = 0.0
        self._began = clock()

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, read: Callable[[], Snapshot]) -> None:
        now = self._clock()
        if now >= self._next:
            self._live.update(table(read(), self._title, now - self._began), refresh=True)
            self._next = now + REFRESH_S


def fields(moment: Snapshot) -> list[tuple[str, str]]:
    """Name and text of everything that is known at this moment."""
    known: list[tuple[str, str]] = []
    if moment.reward is not None:
        known.append(("reward", f"{moment.reward:.3f}"))
    if moment.success is not None:
        known.append(("success", f"{moment.success:.1%}"))
    if moment.loss is not None:
        known.append(("loss", f"{moment.loss:.4g}"))
    known += [(f"eval {row['name']}", rate(row)) for row in moment.evals]
    if moment.tokens_per_s is not None:
        known.append(("tokens/s", f"{moment.tokens_per_s:,.0f}"))
    if moment.staleness is not None:
        known.append(("staleness", f"{moment.staleness:.2f}"))
    if moment.queue is not None:
        known.append(("queue", str(moment.queue)))
    if moment.version is not None and moment.version >= 0:
        known.append(("version", str(moment.version)))
    if moment.eta_s is not None:
        known.append(("ETA", duration(moment.eta_s)))
    return known


def rate(row: dict[str, Any]) -> str:
    """A success rate is never shown without its error, its floor and its ceiling (where they are known)."""
    text = f"{row['success_rate']:.1%} ± {row['success_se']:.1%} @ step {row['step']}"
    if row.get("floor") is not None and row.get("ceiling") is not None:
        text += f" (floor {row['floor']:.1%}, ceiling {row['ceiling']:.1%})"
    return text


def duration(seconds: float) -> str:
    """75 -> "1:15"; 3700 -> "1:01:40"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def line(moment: Snapshot) -> str:
    """One line of text."""
    if moment.stage in ("start", "prepare"):
        states = ", ".join(f"{name} {state}" for name, state in moment.components.items())
        return f"{moment.stage}: {states}"
    parts = [f"{moment.stage} step {moment.step}/{moment.steps}"]
    return " | ".join(parts + [f"{name} {text}" for name, text in fields(moment)])


def table(moment: Snapshot, title: str, seconds: float) -> RenderableType:
    """The picture on a terminal."""
    head = Text.assemble((title, "bold"), f"  {moment.stage}  ", (duration(seconds), "dim"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right", no_wrap=True)
    grid.add_column()
    if moment.stage in ("sft", "train"):
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=moment.steps, completed=moment.step, width=40), f"{moment.step}/{moment.steps}")
        grid.add_row("step", bar)
    for name, text in fields(moment):
        grid.add_row(name, Text(text))
    states = Text()
    for name, state in moment.components.items():
        states.append(f"{name} ", style="default")
        states.append(f"{state}  ", style=COLOURS.get(state, ""))
    grid.add_row("processes", states)
    return Group(head, grid)
