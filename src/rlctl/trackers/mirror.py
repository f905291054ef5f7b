"""Keeps one tracker up to date with a run directory. The run never waits for it, and what it fails to take is not lost.

    news --rows, pictures--> tracker --flush--> noted in RUN/trackers/NAME.json (how far it is, what failed)
              ^                 |
              '-- later, from where it stood: an error is counted, told in the log, and the tracker opened anew

At least once: killed between flush and note, the last few are sent again.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from rlctl.disk.files import write_text
from rlctl.trackers.source import Found, news
from rlctl.trackers.tracker import About, Maker, Picture, Tracker

log = logging.getLogger(__name__)

FOLDER = "trackers"
POLL_S = 2.0
RETRY_S, LONGEST_S = 10.0, 600.0
"""Seconds until a tracker that failed is asked again: doubled with every failure in a row, up to the longest."""
TRIES = 3
"""After so many failures in a row at one picture it is passed over, and counted in `skipped`. Rows never are."""


class Noted(msgspec.Struct):
    """RUN/trackers/NAME.json."""

    name: str
    """As in monitor.trackers."""
    id: str
    """Of the run, as the tracker knows it."""
    row_marks: dict[str, int] = {}
    """Metrics file -> bytes of it that have been sent."""
    picture_marks: dict[str, int] = {}
    """Folder of an episode -> when what has been sent was written."""
    rows: int = 0
    pictures: int = 0
    skipped: int = 0
    """Pictures that the tracker refused TRIES times."""
    failures: int = 0
    waiting: int = 0
    """Rows and pictures that were found and not sent, at the last look."""
    error: str = ""
    """Why, while it fails."""


class Mirror:
    """One tracker of one run."""

    def __init__(
        self,
        run_dir: Path,
        name: str,
        make: Maker,
        project: str,
        config: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._name, self._make, self._clock = run_dir, name, make, clock
        self._project, self._config = project, config
        folder = run_dir / FOLDER
        self._path = folder / f"{name.replace(':', '.')}.json"
        self._folder = folder / name.replace(":", ".")
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self.noted = msgspec.json.decode(self._path.read_bytes(), type=Noted)
        else:
            self.noted = Noted(name, uuid.uuid4().hex[:21])
            self._write()
        self._tracker: Tracker | None = None
        self._sent: list[Found] = []
        self._picture: Picture | None = None
        """Being sent."""
        self._stuck: Picture | None = None
        """Failed last time."""
        self._tries = 0
        self._again_at = 0.0

    def run(self, stop: Event) -> None:
        """Follow the run until `stop`, then send the rest."""
        while not stop.wait(POLL_S):
            self.refresh()
        self.close()

    def refresh(self) -> None:
        """Send what is new, unless the tracker has just failed."""
        if self._clock() >= self._again_at:
            self._attempt()

    def close(self) -> None:
        """Send the rest and close the tracker; log what could not be sent."""
        self._attempt()
        self._drop()
        if self.noted.waiting:
            log.error(
                "%s: %d rows and pictures are not sent (%s); `rlctl track %s --to %s` sends them",
                *(self._name, self.noted.waiting, self.noted.error, self._run_dir, self._name),
            )

    # ------------------------------------------------------------ one attempt

    def _attempt(self) -> None:
        found: list[Found] = []
        try:
            found = news(self._run_dir, self.noted.row_marks, self.noted.picture_marks)
            if not found and not self.noted.error:
                return
            self.noted.waiting = len(found)
            if found:
                self._send(found)
        except Exception as error:  # whatever a foreign library raises: the run goes on without it
            self._failed(found, error)
        else:
            self._tries, self.noted.error = 0, ""
        self._write()

    def _send(self, found: list[Found]) -> None:
        tracker = self._tracker = self._tracker or self._open()
        try:
            for one in found:
                if isinstance(one.what, Picture):
                    self._picture = one.what
                    tracker.picture(one.what)
                else:
                    tracker.row(one.what)
                self._sent.append(one)
            self._picture = None
        finally:
            tracker.flush()
            for one in self._sent:
                self._note(one)
            self._sent.clear()

    def _open(self) -> Tracker:
        title = self._config["run"]["name"]
        name = title if self._run_dir.name == title else f"{title}/{self._run_dir.name}"
        return self._make(About(self._run_dir, self._folder, self._project, name, self.noted.id, self._config))

    def _note(self, one: Found, skipped: bool = False) -> None:
        is_picture = isinstance(one.what, Picture)
        (self.noted.picture_marks if is_picture else self.noted.row_marks)[one.name] = one.mark
        self.noted.waiting -= 1
        if skipped:
            self.noted.skipped += 1
        elif is_picture:
            self.noted.pictures += 1
        else:
            self.noted.rows += 1

    # ------------------------------------------------------------ failure

    def _failed(self, found: list[Found], error: Exception) -> None:
        self._sent.clear()
        self.noted.failures += 1
        self.noted.error = f"{type(error).__name__}: {error}"
        self._tries = self._tries + 1 if self._picture == self._stuck else 1
        self._stuck, self._picture = self._picture, None
        wait_s = min(RETRY_S * 2.0 ** (self._tries - 1), LONGEST_S)
        self._again_at = self._clock() + wait_s
        log.warning(
            "%s failed (%d times so far): %s; the run goes on, and what was not sent is sent in %g s",
            *(self._name, self.noted.failures, self.noted.error, wait_s),
        )
        if self._stuck and self._tries == TRIES:
            self._note(next(one for one in found if one.what == self._stuck), skipped=True)
            log.error("%s: %s is passed over after %d failures", self._name, self._stuck.gif, TRIES)
        self._drop()

    def _drop(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker:
            try:
                tracker.close()
            except Exception as error:
                self.noted.failures += 1
                log.warning("%s could not be closed: %s: %s", self._name, type(error).__name__, error)
                self._write()

    def _write(self) -> None:
        write_text(self._path, msgspec.json.encode(self.noted).decode())
