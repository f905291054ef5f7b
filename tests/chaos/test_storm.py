"""SIGKILL of pool, reward, gateway, trainer and Redis at random moments under load: 0 lost, 0 used twice, sums match.

RLCTL_CHAOS_KILLS=200 pytest -m slow tests/chaos      the long one: 200 kills over the disk, 200 over Redis
"""

import json
import os
from pathlib import Path

import pytest

from tests.chaos.storm import Storm
from tests.pool.redis_server import RedisServer, needs_redis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
KILLS = int(os.environ.get("RLCTL_CHAOS_KILLS", "60"))


async def blow(storm: Storm, kills: int) -> None:
    await storm.start()
    report = await storm.blow(kills, pause_s=0.5)
    print(json.dumps(report, indent=1))
    storm.check(report["statistics"])
    if storm.every > 1 and KILLS >= 100:
        assert report["attempts to learn"] > report["trajectories"], "no kill came between two checkpoints"
    assert sum(report["kills"].values()) >= kills
    assert all(report["kills"].values()) or KILLS < 60, "each of them was killed"
    assert all(code == 0 for name, code in report["exit codes"].items() if name != "trainer")


@pytest.mark.parametrize("every", [1, 3])
async def test_whatever_is_killed_every_sample_is_used_once(tmp_path: Path, every: int) -> None:
    """Half of the kills with a checkpoint after every step, half with one after every third."""
    await blow(Storm(tmp_path, seed=every, every=every), max(4, KILLS // 2))


@needs_redis
async def test_over_redis_whatever_is_killed_and_redis_too_every_sample_is_used_once(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis-server", **{"auto-aof-rewrite-min-size": "1mb"})
    await blow(Storm(tmp_path, seed=5, every=3, redis=redis), max(4, KILLS))
