"""SIGKILL of pool, reward, gateway and trainer at random moments under load: 0 lost, 0 used twice, sums match."""

import json
import os
from pathlib import Path

import pytest

from tests.chaos.storm import Storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KILLS = int(os.environ.get("RLCTL_CHAOS_KILLS", "200"))


@pytest.mark.parametrize("every", [1, 3])
async def test_whatever_is_killed_every_sample_is_used_once(tmp_path: Path, every: int) -> None:
    """Half of the kills with a checkpoint after every step, half with one after every third."""
    storm = Storm(tmp_path, seed=every, every=every)
    await storm.start()
    report = await storm.blow(max(4, KILLS // 2), pause_s=0.5)
    print(json.dumps(report, indent=1))
    storm.check(report["statistics"])
    if every > 1 and KILLS >= 100:
        assert report["attempts to learn"] > report["trajectories"], "no kill came between two checkpoints"
    assert sum(report["kills"].values()) >= max(4, KILLS // 2)
    assert all(code == 0 for name, code in report["exit codes"].items() if name != "trainer")
