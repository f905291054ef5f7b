"""`rlctl eval` on a model of ours: a private pool, engine and gateway, supervised like a run, until all is played.

[prepare] -> pool, engine-0..n -> gateway -> eval (rlctl.rollout.measure), whose exit 0 ends it
"""

import math
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

from rlctl.config import Loaded
from rlctl.disk.files import write_text
from rlctl.up.planning import checks, devices, ports
from rlctl.up.planning.plan import ProcessSpec, plan
from rlctl.up.supervision.leash import GRACE_S
from rlctl.up.supervision.processes import Launcher, secrets
from rlctl.up.supervision.supervisor import Limits, Stops, Supervisor

SERVING = ("prepare", "pool", "engine", "gateway")


def specs(loaded: Loaded, folder: Path) -> list[ProcessSpec]:
    """The serving processes of a run, and the one that plays."""
    config, gpus = loaded.config, devices.visible()
    whole = plan(config, folder, ports.pick(config), devices.split(config, gpus))
    serving = [spec for spec in whole if spec.name.partition("-")[0] in SERVING]
    gateway = next(spec for spec in serving if spec.name == "gateway")
    argv = tuple("measure" if word == "gateway" else word for word in gateway.argv)
    needs = tuple(spec.name for spec in serving if spec.name in ("pool", "gateway"))
    return [*serving, replace(gateway, name="eval", argv=argv, needs=needs, ends_run=True)]


def start(loaded: Loaded, folder: Path) -> None:
    """Play to the end; raises what a run raises (Died, Interrupted)."""
    planned = specs(loaded, folder)
    checks.check(loaded, planned, checks.hub_problem)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "resolved.toml", loaded.toml())
    mark = uuid.uuid4().hex
    leash = subprocess.Popen(
        [sys.executable, "-m", "rlctl.up.supervision.leash", mark], stdin=subprocess.PIPE, start_new_session=True
    )
    assert leash.stdin is not None
    limits = Limits(start_s=loaded.config.engine.start_timeout_s, watchdog_s=math.inf)
    try:
        with Stops() as stops:
            Supervisor(folder, planned, Launcher(folder, mark, secrets(loaded.config)), limits, stops).run()
    finally:
        leash.stdin.close()
        leash.wait(timeout=GRACE_S + 5.0)
