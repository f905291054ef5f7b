"""Runs the planned processes together: all or none.

    waiting --needs are ready--> starting --components/NAME.json--> ready --exit 0 of train--> the run is complete
                                    '------exit 0 of prepare, sft--> done
    any other exit, at any time --> dead, ComponentDied: all the others are ended (SIGTERM, then SIGKILL);
                                    a mirror (track) is dead, and the run goes on without it

What others need outlives them: the processes that need no serving one (pool, engines) are ended after the others, so
that the pool's last statistics count everything; mirrors come last and longest, to send what the end has written.
"""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from rlctl.disk.files import write_text
from rlctl.errors import ComponentDied, RlctlError, Watchdog
from rlctl.up.planning.plan import ProcessSpec
from rlctl.up.supervision.processes import Child, Launch, exit_text, wait_all

State = Literal["waiting", "starting", "ready", "done", "dead", "ended"]
POLL_S = 0.1
GRACE_S = (3.0, 2.5, 10.0)
"""Seconds between SIGTERM and SIGKILL: for the processes that need others, then for those they needed, then mirrors."""
TAIL = 15


class Interrupted(RlctlError):
    """SIGINT or SIGTERM."""

    exit_code = 130


class Died(ComponentDied):
    """ComponentDied with the last lines of its log."""

    def __init__(self, message: str, name: str, tail: list[str]) -> None:
        super().__init__(message)
        self.name = name
        self.tail = tail


@dataclass
class Member:
    """A process of the run and where it stands."""

    spec: ProcessSpec
    state: State = "waiting"
    child: Child | None = None
    since: float = 0.0
    """Clock time of its start."""


@dataclass(frozen=True)
class Limits:
    """When waiting ends."""

    start_s: float
    """For a process to become ready."""
    watchdog_s: float
    """Between training steps."""


@dataclass
class Stops:
    """Counts SIGINT and SIGTERM: the first ends the run in order, a second one at once."""

    count: int = 0
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> "Stops":
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[signum] = signal.signal(signum, self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _seen(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1


class Supervisor:
    """Starts, watches and ends the processes of one run. `launch`, `clock` and `sleep` are injected for tests."""

    def __init__(
        self,
        run_dir: Path,
        specs: list[ProcessSpec],
        launch: Launch,
        limits: Limits,
        stops: Stops,
        watch: Callable[[list[Member]], None] = lambda members: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.members = [Member(spec) for spec in specs]
        self._components = run_dir / "components"
        self._steps = [run_dir / "metrics" / f"{name}.jsonl" for name in ("sft", "train")]
        self._launch = launch
        self._limits = limits
        self._stops = stops
        self._watch = watch
        self._clock = clock
        self._sleep = sleep
        self._progress: tuple[float, object] = (clock(), None)

    def run(self) -> None:
        """Until the process that ends the run exits with 0, else raise Died, Watchdog or Interrupted."""
        self._components.mkdir(parents=True, exist_ok=True)
        try:
            while not self._advance():
                self._watch(self.members)
                if self._stops.count:
                    raise Interrupted("interrupted")
                self._sleep(POLL_S)
        finally:
            self.stop()

    # ------------------------------------------------------------ one round

    def _advance(self) -> bool:
        """One round over all processes; True when the run is complete."""
        for member in self.members:
            if member.state == "waiting" and self._startable(member):
                self._start(member)
            elif member.state in ("starting", "ready"):
                self._look_at(member)
        self._check_progress()
        return any(member.spec.ends_run and member.state == "done" for member in self.members)

    def _startable(self, member: Member) -> bool:
        states = {other.spec.name: other.state for other in self.members}
        return all(states[need] in ("ready", "done") for need in member.spec.needs)

    def _start(self, member: Member) -> None:
        (self._components / f"{member.spec.name}.json").unlink(missing_ok=True)  # of an earlier life of this run
        member.child = self._launch(member.spec)
        member.since = self._clock()
        member.state = "starting"

    def _look_at(self, member: Member) -> None:
        assert member.child is not None
        code = member.child.poll()
        if code is not None:
            self._ended(member, code)
        elif member.state == "starting" and self._announced(member):
            member.state = "ready"
        elif self._late(member):
            raise self._death(member, f"was not ready within {self._limits.start_s:g} s")

    def _late(self, member: Member) -> bool:
        spec = member.spec
        serves = member.state == "starting" and spec.ready_when == "announced" and not spec.ends_run
        return serves and spec.stage != "mirror" and self._clock() - member.since > self._limits.start_s

    def _announced(self, member: Member) -> bool:
        """Whether the process, not an earlier one of that name, has written its readiness file."""
        path = self._components / f"{member.spec.name}.json"
        if member.spec.ready_when == "exit" or not path.exists():
            return False
        assert member.child is not None
        return member.child.owns(int(json.loads(path.read_text(encoding="utf-8"))["pid"]))

    def _ended(self, member: Member, code: int) -> None:
        """A process has exited. A stage's exit 0 is its success; anything else ends the run (no restarts)."""
        if member.spec.stage in TRAINERS and code == Watchdog.exit_code:
            member.state = "dead"
            assert member.child is not None
            raise Watchdog(f"{member.spec.name} made no progress; its log, with its stacks, is {member.child.log}")
        stage = member.spec.ready_when == "exit" or member.spec.ends_run
        if code or not stage:
            member.state = "dead"
            if member.spec.stage == "mirror":
                return
            raise self._death(member, f"died with {exit_text(code)}")
        member.state = "done"
        self._record(member)

    def _death(self, member: Member, what: str) -> Died:
        assert member.child is not None
        tail = member.child.tail(TAIL)
        return Died(f"{member.spec.name} {what}; its log is {member.child.log}", member.spec.name, tail)

    def _record(self, member: Member) -> None:
        """Note in the component's file how it ended: done, dead, or ended (with the run)."""
        assert member.child is not None
        path = self._components / f"{member.spec.name}.json"
        url = json.loads(path.read_text(encoding="utf-8"))["url"] if path.exists() else ""
        row = {"name": member.spec.name, "pid": member.child.pid, "url": url, "state": member.state}
        write_text(path, json.dumps(row))

    def _check_progress(self) -> None:
        """Watchdog: while a trainer runs, its metrics must grow (a new stage counts as growth)."""
        trainers = [m for m in self.members if m.spec.stage in TRAINERS and m.state in LIVING]
        seen = ([m.spec.name for m in trainers], [path.stat().st_size if path.exists() else 0 for path in self._steps])
        now = self._clock()
        if not trainers or seen != self._progress[1]:
            self._progress = (now, seen)
        elif now - self._progress[0] > self._limits.watchdog_s:
            last = trainers[-1]
            assert last.child is not None
            raise Watchdog(
                f"no training step for {self._limits.watchdog_s:g} s (monitor.watchdog_s); the last process to look at "
                f"is {last.spec.name}; its log, with its stacks, is {last.child.log}"
            )

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        """End everything that runs: those that need others first, then the others; a second Ctrl-C kills at once."""
        serving = {member.spec.name for member in self.members if member.spec.stage == "serve"}

        def turn(spec: ProcessSpec) -> int:
            return 2 if spec.stage == "mirror" else 0 if serving & set(spec.needs) else 1

        for number, grace in enumerate(GRACE_S):
            children = [m.child for m in self.members if m.child and turn(m.spec) == number]
            living = [child for child in children if child.poll() is None]
            for child in living:
                child.signal(signal.SIGTERM)
            interrupts = self._stops.count
            deadline = self._clock() + grace
            while (living := wait_all(living, min(deadline, self._clock() + POLL_S), self._clock)) and (
                self._clock() < deadline and self._stops.count == interrupts
            ):
                continue
            for child in children:
                child.signal(signal.SIGKILL)  # also what a dead process left in its group
            wait_all(living, self._clock() + 1.0, self._clock)
        for member in self.members:
            if member.state in LIVING:
                member.state = "ended"
            if member.state in ("ended", "dead"):
                self._record(member)


LIVING = ("starting", "ready")
TRAINERS = ("sft", "train")
"""Stages whose processes train."""
