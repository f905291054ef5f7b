"""`rlctl up`: from a configuration to the end of the run.

check everything -> claim the run directory -> leash -> supervisor (progress) -> report -> exit code
"""

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from rlctl.config import Loaded
from rlctl.disk.files import write_text
from rlctl.errors import ConfigError, RlctlError, Watchdog
from rlctl.telemetry.metrics import Metrics
from rlctl.up.history import summary
from rlctl.up.history.snapshot import Reader
from rlctl.up.live.progress import progress
from rlctl.up.planning import checks, devices, ports, provenance
from rlctl.up.planning.plan import Ports, ProcessSpec, plan
from rlctl.up.report.page.write import write as write_page
from rlctl.up.report.report import report, show
from rlctl.up.supervision.leash import GRACE_S
from rlctl.up.supervision.processes import Launcher, secrets
from rlctl.up.supervision.supervisor import Died, Interrupted, Limits, Member, Stops, Supervisor

PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""
ACCOUNT_S = 5.0
"""Between two measurements of the CPU time of all processes."""


@dataclass(frozen=True)
class Setup:
    """A run that has passed every check and has not started."""

    loaded: Loaded
    run_dir: Path
    specs: list[ProcessSpec]
    ports: Ports
    gpus: tuple[int, ...]
    resume: bool = False


def set_up(loaded: Loaded, run_dir: Path | None, resume: bool, only: list[str]) -> Setup:
    """Plan the run; touches nothing. `run_dir`: where to resume, None: as configured."""
    config = loaded.config
    folder = (run_dir or _fresh(loaded)).absolute()
    gpus = devices.visible()
    picked = ports.pick(config)
    specs = plan(config, folder, picked, devices.split(config, gpus), only)
    return Setup(loaded, folder, _without_finished(specs, folder) if resume else specs, picked, gpus, resume)


def latest(loaded: Loaded) -> Path:
    """The newest run directory of this name, for `--resume` without a directory."""
    config = loaded.config
    if config.run.dir:
        return config.run_dir
    runs = sorted(path.parent for path in (Path("runs") / config.run.name).glob("*/resolved.toml"))
    if not runs:
        raise ConfigError(f"--resume: there is no run of {config.run.name!r} under runs/{config.run.name}")
    return runs[-1]


def start(setup: Setup, as_json: bool) -> int:
    """Run to the end, report, and return the exit code."""
    checks.check(setup.loaded, setup.specs, checks.hub_problem)
    _claim(setup)
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(f"run directory  {setup.run_dir}", highlight=False, soft_wrap=True)
    life = Life(setup)
    status, error = "failed", None
    try:
        _supervise(setup, console)
        status = "ok"
    except RlctlError as caught:
        error = caught
        status = _status(caught)
    finally:
        life.end(status, str(error or ""))
    written = report(setup.run_dir)
    show(console, setup.run_dir, written)
    if as_json:
        sys.stdout.write(json.dumps(written) + "\n")
    if isinstance(error, Died):
        title = f"last lines of {error.name}"
        console.print(Panel(Text("\n".join(error.tail) or "(nothing)"), title=title, title_align="left", style="red"))
    if error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    return error.exit_code if error else 0


def _status(error: RlctlError) -> str:
    if isinstance(error, Interrupted):
        return "interrupted"
    return "watchdog" if isinstance(error, Watchdog) else "component_died" if isinstance(error, Died) else "failed"


def _supervise(setup: Setup, console: Console) -> None:
    config, mark = setup.loaded.config, uuid.uuid4().hex
    reader = Reader(config, setup.run_dir)
    account = Account(setup.run_dir)
    leash = subprocess.Popen(
        [sys.executable, "-m", "rlctl.up.supervision.leash", mark], stdin=subprocess.PIPE, start_new_session=True
    )
    assert leash.stdin is not None
    try:
        page = Page(setup.run_dir, config.monitor.report_every_s)
        with Stops() as stops, progress(console, config.run.name, config.monitor.print_every_s) as shown:

            def watch(members: list[Member]) -> None:
                account.take(members)
                page.refresh()
                shown.show(lambda: reader.read({m.spec.name: m.state for m in members}))

            limits = Limits(start_s=config.engine.start_timeout_s, watchdog_s=config.monitor.watchdog_s)
            launch = Launcher(setup.run_dir, mark, secrets(config))
            supervisor = Supervisor(setup.run_dir, setup.specs, launch, limits, stops, watch)
            try:
                supervisor.run()
            finally:
                account.take(supervisor.members, last=True)
    finally:
        leash.stdin.close()  # the leash ends whatever is left of this run, then itself
        leash.wait(timeout=GRACE_S + 5.0)


class Page:
    """Keeps `report.html` fresh while a run goes on."""

    def __init__(self, run_dir: Path, every_s: float) -> None:
        self._run_dir, self._every_s = run_dir, every_s
        self._next = time.monotonic() + every_s

    def refresh(self) -> None:
        if time.monotonic() >= self._next:
            write_page(self._run_dir, summary.summarize(self._run_dir))
            self._next = time.monotonic() + self._every_s


class Account:
    """Writes CPU and wall seconds of every process to `metrics/up.jsonl`."""

    def __init__(self, run_dir: Path) -> None:
        self._metrics = Metrics(run_dir, "up")
        self._next = 0.0
        self._wall: dict[str, float] = {}

    def take(self, members: list[Member], last: bool = False) -> None:
        now = time.monotonic()
        for member in members:
            if member.child and (member.state in ("starting", "ready") or member.spec.name not in self._wall):
                self._wall[member.spec.name] = now - member.since
        if last or now >= self._next:
            self._next = now + ACCOUNT_S
            row = {f"cpu.{m.spec.name}": round(m.child.cpu_s(), 3) for m in members if m.child}
            row |= {f"wall.{name}": round(value, 3) for name, value in self._wall.items()}
            if row:
                self._metrics.write(**row)
        if last:
            self._metrics.close()


class Life:
    """`up.json`: who runs this run, since when, and how it ended."""

    def __init__(self, setup: Setup) -> None:
        self._path = setup.run_dir / "up.json"
        before = summary.lifetime(setup.run_dir)["wall_s"] if setup.resume else 0.0
        self._began = time.monotonic()
        config = setup.loaded.config
        self._row: dict[str, Any] = {
            "pid": os.getpid(),
            "status": "running",
            "error": "",
            "name": config.run.name,
            "steps": config.run.steps,
            "started": time.time(),
            "wall_s": before,
            "processes": [spec.name for spec in setup.specs],
        }
        self._write()

    def end(self, status: str, error: str) -> None:
        self._row |= {"status": status, "error": error}
        self._row["wall_s"] += time.monotonic() - self._began
        self._write()

    def _write(self) -> None:
        write_text(self._path, json.dumps(self._row, indent=1) + "\n")


# ---------------------------------------------------------------- the run directory


def _fresh(loaded: Loaded) -> Path:
    config = loaded.config
    if config.run.dir:
        return config.run_dir
    base = Path("runs") / config.run.name / time.strftime("%Y%m%d-%H%M%S")
    names = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 1000))]
    return next(path for path in names if not path.exists())


def _claim(setup: Setup) -> None:
    where = checks.place(setup.loaded, "run.dir")
    if setup.resume and summary.lifetime(setup.run_dir)["status"] == "running":
        raise ConfigError(f"{setup.run_dir} is running already; `rlctl stop {setup.run_dir}` ends it")
    checks.claim(setup.run_dir, setup.resume, where)
    write_text(setup.run_dir / "resolved.toml", setup.loaded.toml())
    provenance.note(setup.run_dir, setup.loaded)


def _without_finished(specs: list[ProcessSpec], run_dir: Path) -> list[ProcessSpec]:
    """On resume: a warm start that has ended well is not done again."""
    path = run_dir / "components" / "sft.json"
    if not path.exists() or json.loads(path.read_text(encoding="utf-8"))["state"] not in ("done", "finished"):
        return specs
    kept = [spec for spec in specs if spec.name != "sft"]
    return [replace(spec, needs=tuple(need for need in spec.needs if need != "sft")) for spec in kept]


# ---------------------------------------------------------------- --plan


def planned(setup: Setup) -> dict[str, Any]:
    """What would start, for `--plan --json`."""
    return {
        "run_dir": str(setup.run_dir),
        "model": setup.loaded.config.model.path or str(setup.run_dir / "model"),
        "ports": asdict(setup.ports),
        "gpus": list(setup.gpus),
        "files": {
            "resolved": str(setup.run_dir / "resolved.toml"),
            "logs": {spec.name: str(setup.run_dir / "logs" / f"{spec.name}.log") for spec in setup.specs},
        },
        "processes": [asdict(spec) for spec in setup.specs],
    }
