"""A gateway that is restarted in the middle of episodes: nothing is taken for a duplicate, nothing is forgotten."""

from pathlib import Path

from conftest import running
from fakes import FakePool
from test_fidelity import check_fidelity

HELLO = [{"role": "user", "content": "hello"}]


async def test_episodes_go_on_behind_their_earlier_steps(tmp_path: Path) -> None:
    pool = await FakePool().start()
    async with running(tmp_path / "a", pool_url=pool.url) as first:
        for uid in ("t1", "t1", "t2", "t3"):
            await first.client.chat(uid, HELLO)
        await first.client.post("/t3/p1/v1/complete_trajectory", {})
    async with running(tmp_path / "b", pool_url=pool.url) as second:
        await second.client.chat("t1", HELLO)
        await second.client.chat("t4", HELLO)
        for uid in ("t1", "t2", "t4"):
            assert (await second.client.post(f"/{uid}/p1/v1/complete_trajectory", {}))[0] == 200
        assert check_fidelity([*first.engines, *second.engines], pool) == 6
    assert pool.duplicates == 0
    assert {uid: end.num_steps for uid, end in pool.ends.items()} == {"t1": 3, "t2": 1, "t3": 1, "t4": 1}
    assert [step.fork_reason for step in pool.steps["t1"].values()] == ["", "parallel", "restart"]
    await pool.stop()
