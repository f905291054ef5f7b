"""The gateway with the real pool process: SIGKILL under load loses no acknowledged Step and stores none twice."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import running
from test_fidelity import check_fidelity, talk

from rlctl.wire.messages import TakeUnscored
from rlctl.wire.ports import free_port
from rlctl.wire.samples import Trajectory
from rlctl.wire.sockets import Ask

pytest.importorskip("rlctl.pool.server")


def start_pool(folder: Path, port: int) -> subprocess.Popen[bytes]:
    preset = folder / "pool.toml"
    preset.write_text(f'[run]\ndir = "{folder}"\n[model]\ninit = "tiny"\n[pool]\nport = {port}\n')
    return subprocess.Popen([sys.executable, "-m", "rlctl", "pool", "--config", str(preset)])


async def unscored(ask: Ask, count: int) -> list[Trajectory]:
    """The completed trajectories, once there are `count` of them."""
    found: list[Trajectory] = []
    for _ in range(20):
        found += (await ask.ask(TakeUnscored(wait_s=1.0))).trajectories
        if len(found) >= count:
            break
    return found


async def test_a_killed_pool_has_every_acknowledged_step_once_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    process = start_pool(tmp_path, port)
    ask = Ask(f"tcp://127.0.0.1:{port}", retry_s=0.5)
    try:
        async with running(tmp_path, pool_url=ask.url) as stack:
            talks = [asyncio.create_task(talk(stack, f"t{seed}", seed)) for seed in range(20)]
            for _ in range(500):
                if len(stack.engine.calls) >= 15:
                    break
                await asyncio.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            await asyncio.sleep(1.0)
            process = start_pool(tmp_path, port)
            await asyncio.gather(*talks)
            for trajectory in await unscored(ask, 20):
                for step in trajectory.steps:
                    assert step.step_index not in stack.pool.steps[trajectory.uid], "twice"
                    stack.pool.steps[trajectory.uid][step.step_index] = step
            assert check_fidelity(stack.engines, stack.pool) == sum(len(c["responses"]) for c in stack.engine.calls)
    finally:
        ask.close()
        process.kill()
        process.wait()
