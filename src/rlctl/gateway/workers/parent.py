"""Several gateway processes behind one port: the parent of them.

    parent --fork--> worker 0 .. N-1       each accepts at the common port; a connection goes to the owner of its
      |                                    trajectory (handover.py)
      +-- rows of every worker, through a pipe, become one row of metrics/gateway.jsonl
      +-- a worker that dies is forked again; its open trajectories go on as after a restart of the gateway (the pool
          knows their Steps). One that dies before it serves, or DEATHS in WITHIN_S, end the gateway.

The parent makes all sockets, so connections that wait for a dead worker are served by its successor.
"""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rlctl.errors import RlctlError
from rlctl.gateway.report import summed
from rlctl.gateway.workers.worker import Worker
from rlctl.telemetry import logs
from rlctl.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
DEATHS, WITHIN_S = 5, 60.0
END_S = 3.0
"""For the workers to end after SIGTERM; then SIGKILL."""
Work = Callable[[Worker, "Reports"], None]
"""Runs one worker until SIGTERM."""


class WorkerDied(RlctlError):
    """A worker process cannot be kept alive."""


class Reports:
    """What a worker tells its parent: that it serves, and rows of numbers."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def serving(self) -> None:
        self._pipe.send_bytes(b"{}")

    def write(self, **values: Any) -> None:
        self._pipe.send_bytes(json.dumps(values).encode())

    def close(self) -> None:
        self._pipe.close()


@dataclass
class _Place:
    """One of the workers, through the lives of its processes."""

    worker: Worker
    process: Any = None
    pipe: Connection | None = None
    serving: bool = False
    row: dict[str, Any] = field(default_factory=dict)
    """Last row of the living process."""


class Workers:
    """Starts, watches and ends `count` workers."""

    def __init__(self, count: int, work: Work, metrics: Metrics, every_s: float) -> None:
        self._work = work
        self._metrics = metrics
        self._every_s = every_s
        self._folder = tempfile.mkdtemp(prefix="rlctl-gateway-")
        self._parent = os.getpid()
        inboxes = tuple(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count))
        for one in (end for pair in inboxes for end in pair):
            one.setblocking(False)
        listeners = [_unix_listener(Path(self._folder) / f"{i}.sock") for i in range(count)]
        addresses = tuple(one.getsockname() for one in listeners)
        self._places = [
            _Place(Worker(i, count, False, inboxes, addresses, listener)) for i, listener in enumerate(listeners)
        ]
        self._gone: list[dict[str, Any]] = []
        """Last rows of processes that have died: what they counted stays counted."""
        self._deaths: deque[float] = deque(maxlen=DEATHS - 1)

    def run(self, announce: Callable[[], None]) -> None:
        """Until SIGTERM or SIGINT; `announce` is called when all serve. WorkerDied when they do not stay alive."""
        wake, stop = os.pipe()
        os.set_blocking(stop, False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: None)
        before = signal.set_wakeup_fd(stop)
        try:
            for place in self._places:
                self._fork(place)
            self._watch(wake, announce)
        finally:
            self._end()
            signal.set_wakeup_fd(before)
            self._write()
            self._metrics.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self, wake: int, announce: Callable[[], None]) -> None:
        announced, row_at = False, time.monotonic() + self._every_s
        while True:
            pipes = [place.pipe for place in self._places if place.pipe is not None]
            ends = [place.process.sentinel for place in self._places]
            ready = wait([wake, *pipes, *ends], max(0.0, row_at - time.monotonic()))
            for place in self._places:
                self._hear(place)
            if wake in ready and any(byte in (signal.SIGTERM, signal.SIGINT) for byte in os.read(wake, 64)):
                return
            for place in self._places:
                if place.process.sentinel in ready:
                    self._died(place)
            if not announced and all(place.serving for place in self._places):
                announced = True
                announce()
            if time.monotonic() >= row_at:
                row_at += self._every_s
                self._write()

    def _fork(self, place: _Place) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        place.process = context.Process(
            target=self._child, args=(place.worker, theirs), name=f"gateway-{place.worker.index}", daemon=True
        )
        place.process.start()
        theirs.close()
        place.pipe, place.serving, place.row = ours, False, {}

    def _child(self, worker: Worker, pipe: Connection) -> None:
        logs.setup(f"gateway-{worker.index}")
        signal.set_wakeup_fd(-1)
        for place in self._places:
            if place.pipe is not None:
                place.pipe.close()
        try:
            self._work(worker, Reports(pipe))
        except RlctlError as error:
            log.error("%s", error)
            sys.exit(1)

    def _hear(self, place: _Place) -> None:
        try:
            while place.pipe is not None and place.pipe.poll():
                row = json.loads(place.pipe.recv_bytes())
                place.serving = True
                place.row = row or place.row
        except EOFError:
            place.pipe = None

    def _died(self, place: _Place) -> None:
        place.process.join()
        self._hear(place)
        code, index = place.process.exitcode, place.worker.index
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if not place.serving:
            raise WorkerDied(f"gateway worker {index} {how} before it served; the log says why")
        now = time.monotonic()
        if len(self._deaths) == DEATHS - 1 and now - self._deaths[0] < WITHIN_S:
            raise WorkerDied(f"gateway worker {index} {how}, the {DEATHS}th death within {WITHIN_S:g} s")
        self._deaths.append(now)
        log.error("worker %d (process %d) %s; another one takes its place", index, place.process.pid, how)
        self._gone.append(place.row)
        place.worker = _replaced(place.worker)
        self._fork(place)

    def _write(self) -> None:
        gone = [{**row, **dict.fromkeys(NOW, 0)} for row in self._gone if row]
        living = [place.row for place in self._places if place.row]
        if gone or living:
            total = summed([*gone, *living])
            up_s = max((row["up_s"] for row in [*gone, *living]), default=0.0)
            self._metrics.write(**{**total, "up_s": up_s, "workers": len(self._places)})

    def _end(self) -> None:
        alive = [place for place in self._places if place.process is not None]
        for place in alive:
            place.process.terminate()
        deadline = time.monotonic() + END_S
        for place in alive:
            while place.process.is_alive() and time.monotonic() < deadline:
                self._hear(place)
                place.process.join(0.02)
            if place.process.is_alive():
                log.error("worker %d does not end; it is killed", place.worker.index)
                place.process.kill()
                place.process.join()
            self._hear(place)


NOW = ("sessions", "unacknowledged")
"""Numbers of the moment: a dead process has none."""


def _replaced(worker: Worker) -> Worker:
    return Worker(worker.index, worker.count, True, worker.inboxes, worker.addresses, worker.listener)


def _unix_listener(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(str(path))
    one.listen(1024)
    return one
