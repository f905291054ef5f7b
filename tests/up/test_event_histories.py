"""The supervisor against scripted processes and a clock of its own: no waiting, no real process."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlctl.errors import Watchdog
from rlctl.up.planning.plan import ProcessSpec
from rlctl.up.supervision.supervisor import Died, Interrupted, Limits, Stops, Supervisor


@dataclass
class FakeChild:
    """Announces itself at `ready_at` and exits with `code` at `ends_at` (clock times); dies on any signal."""

    name: str
    run_dir: Path
    clock: "Clock"
    ready_at: float = 0.0
    ends_at: float = 1e9
    code: int = 0
    pid: int = 42
    log: Path = Path("logs/fake.log")
    signals: list[int] = field(default_factory=list)

    def poll(self) -> int | None:
        if self.signals:
            return -self.signals[0]
        if self.clock.now >= self.ready_at:
            row = {"name": self.name, "pid": self.pid, "url": "", "state": "ready"}
            (self.run_dir / "components" / f"{self.name}.json").write_text(json.dumps(row))
        return self.code if self.clock.now >= self.ends_at else None

    def signal(self, signum: int) -> None:
        self.signals.append(signum)
        self.clock.events.append(f"{self.name} gets {signum}")

    def owns(self, pid: int) -> bool:
        return pid == self.pid

    def cpu_s(self) -> float:
        return 0.0

    def tail(self, lines: int) -> list[str]:
        return ["the end"]


@dataclass
class Clock:
    now: float = 0.0
    events: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)


def supervise(run_dir: Path, clock: Clock, stops: Stops, specs: list[ProcessSpec], **children: dict) -> Supervisor:
    def launch(spec: ProcessSpec) -> FakeChild:
        clock.events.append(f"{spec.name} starts at {clock.now:g}")
        return FakeChild(spec.name, run_dir, clock, **children.get(spec.name, {}))

    limits = Limits(start_s=10, watchdog_s=5)
    return Supervisor(run_dir, specs, launch, limits, stops, clock=clock, sleep=clock.sleep)


POOL = ProcessSpec("pool", ())
GATEWAY = ProcessSpec("gateway", (), needs=("pool",))
TRACK = ProcessSpec("track", (), stage="mirror")
TRAIN = ProcessSpec("train", (), stage="train", needs=("gateway",), ends_run=True)


def test_each_starts_when_what_it_needs_is_ready(tmp_path: Path) -> None:
    clock = Clock()
    supervise(tmp_path, clock, Stops(), [POOL, GATEWAY, TRAIN], pool={"ready_at": 2}, train={"ends_at": 4}).run()
    starts = [event for event in clock.events if "starts" in event]
    assert starts == ["pool starts at 0", "gateway starts at 2", "train starts at 2.1"]


def test_the_pool_is_ended_after_those_that_need_it(tmp_path: Path) -> None:
    clock = Clock()
    supervise(tmp_path, clock, Stops(), [POOL, GATEWAY, TRAIN], train={"ends_at": 1}).run()
    assert clock.events.index("gateway gets 15") < clock.events.index("pool gets 15")


def test_a_readiness_file_of_another_process_does_not_count(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "pool.json").write_text('{"name": "pool", "pid": 7, "url": "", "state": "ready"}')
    with pytest.raises(Died, match="pool was not ready within 10 s"):
        supervise(tmp_path, clock, Stops(), [POOL, GATEWAY], pool={"ready_at": 1e9}).run()
    assert "gateway starts" not in " ".join(clock.events)


def test_the_message_of_a_death_carries_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(Died, match=r"pool died with signal 11 \(SIGSEGV\)") as caught:
        supervise(tmp_path, Clock(), Stops(), [POOL], pool={"ends_at": 1, "code": -11}).run()
    assert caught.value.tail == ["the end"]
    assert caught.value.exit_code == 3


def test_the_watchdog_counts_from_the_last_metrics_row(tmp_path: Path) -> None:
    clock = Clock()
    metrics = tmp_path / "metrics" / "train.jsonl"
    metrics.parent.mkdir()

    def write(members: list) -> None:
        if 3 <= clock.now < 3.05:
            metrics.write_text("{}\n")

    supervisor = supervise(tmp_path, clock, Stops(), [ProcessSpec("train", (), stage="train", ends_run=True)])
    supervisor._watch = write
    with pytest.raises(Watchdog):
        supervisor.run()
    assert 8 < clock.now < 8.5


def test_without_a_trainer_there_is_no_watchdog(tmp_path: Path) -> None:
    clock, stops = Clock(), Stops()
    supervisor = supervise(tmp_path, clock, stops, [POOL])

    def interrupt_late(members: list) -> None:
        stops.count += clock.now > 60

    supervisor._watch = interrupt_late
    with pytest.raises(Interrupted):
        supervisor.run()
    assert clock.now > 60


def test_a_run_goes_on_when_its_mirror_dies_or_never_gets_ready(tmp_path: Path) -> None:
    for number, fate in enumerate(({"ends_at": 1, "code": -11}, {"ends_at": 1, "code": 0}, {"ready_at": 1e9})):
        clock = Clock()
        specs = [TRACK, POOL, GATEWAY, TRAIN]
        made = supervise(tmp_path / str(number), clock, Stops(), specs, track=fate, train={"ends_at": 4.5})
        made._limits = Limits(start_s=2, watchdog_s=5)
        made.run()
        assert made.members[-1].state == "done"
        state = json.loads((tmp_path / str(number) / "components" / "track.json").read_text())["state"]
        assert state == ("dead" if "code" in fate else "ended")


def test_mirrors_are_ended_last(tmp_path: Path) -> None:
    clock = Clock()
    supervise(tmp_path, clock, Stops(), [TRACK, POOL, GATEWAY, TRAIN], train={"ends_at": 1}).run()
    ends = [event for event in clock.events if event.endswith("gets 15")]
    assert ends == ["gateway gets 15", "pool gets 15", "track gets 15"]
