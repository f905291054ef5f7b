"""What a tracker is: the one interface that rows and pictures leave a run by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class About:
    """The run that a tracker is opened for."""

    run_dir: Path
    folder: Path
    """`RUN/trackers/NAME`, for the tracker's own files; it is there."""
    project: str
    name: str
    id: str
    """Stays the same when the run is resumed; 21 letters and digits."""
    config: Mapping[str, Any]
    """resolved.toml."""


@dataclass(frozen=True)
class Row:
    """The numbers of one row of metrics."""

    series: str
    """train, sft, eval, ...; rows of one series count the same steps."""
    step: int
    at: float
    """Unix seconds."""
    values: dict[str, float]
    """By tag: SERIES/NAME, or SERIES/LABEL/.../NAME where the row has labels."""


@dataclass(frozen=True)
class Picture:
    """One episode, animated."""

    tag: str
    """pictures/SERIES/ENV-NUMBER: under one tag, the same place at every step."""
    step: int
    at: float
    gif: Path
    caption: str


class Tracker(Protocol):
    """May raise whatever its library raises, and hang: it has a thread of its own, and what failed is sent again."""

    def row(self, row: Row) -> None: ...

    def picture(self, picture: Picture) -> None: ...

    def flush(self) -> None:
        """What was given before is safe when this returns: kept by the tracker, or on disk."""

    def close(self) -> None: ...


Maker = Callable[[About], Tracker]
