"""The watchdog inside a training process: shows where every thread stands, then ends the process."""

import faulthandler
import logging
import os
import threading
import time

from rlctl.errors import Watchdog

log = logging.getLogger(__name__)

STACKS_AT = 0.9
"""Part of the limit after which the stacks are written to stderr, also while the interpreter itself hangs."""
FAREWELL_S = 5.0
"""`rlctl up` watches the same limit from outside and ends the whole run; the process ends by itself only after that."""


class Stall:
    """Counts from its making and from every `moved`; ends the process with exit code 4 when that is too long ago."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._over = threading.Event()
        self.moved()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def moved(self) -> None:
        """A training step is done."""
        self._until = time.monotonic() + self._limit_s + FAREWELL_S
        faulthandler.dump_traceback_later(STACKS_AT * self._limit_s)

    def end(self) -> None:
        """Nothing is awaited any more."""
        faulthandler.cancel_dump_traceback_later()
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._until - time.monotonic())):
            if time.monotonic() >= self._until:
                log.critical("no training step for %g s (monitor.watchdog_s); stacks are above", self._limit_s)
                logging.shutdown()
                os._exit(Watchdog.exit_code)
