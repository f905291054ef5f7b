"""Acknowledged means on the pool's disk; a pool that is away loses nothing and stores nothing twice."""

import asyncio
from pathlib import Path

from conftest import running
from fakes import FakePool
from test_fidelity import check_fidelity

HELLO = [{"role": "user", "content": "hello"}]


async def test_steps_wait_while_the_pool_is_away_and_arrive_once(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        await stack.client.chat("t0", HELLO)
        port = stack.pool.port
        await stack.pool.stop()
        calls = [asyncio.create_task(stack.client.chat(f"t{i}", HELLO)) for i in range(1, 9)]
        ends = asyncio.create_task(stack.client.post("/t0/p1/v1/complete_trajectory", {"reward": 1.0}))
        await asyncio.sleep(1.5)
        assert not any(call.done() for call in calls), "no answer before the pool has the step"
        assert (await stack.client.get("/ready"))[0] == 503
        back = FakePool()
        back.steps, back.duplicates = stack.pool.steps, stack.pool.duplicates
        stack.pool = await back.start(port)
        await asyncio.gather(*calls, ends)
        assert check_fidelity(stack.engines, stack.pool) == 9
        assert stack.pool.ends["t0"].reward == 1.0


async def test_beyond_the_bound_new_calls_are_refused_before_they_cost_tokens(tmp_path: Path) -> None:
    async with running(tmp_path, max_waiting_steps=2) as stack:
        await stack.pool.stop()
        held = [asyncio.create_task(stack.client.chat(f"t{i}", HELLO)) for i in range(2)]
        await asyncio.sleep(0.3)
        status, body = await stack.client.post("/t9/p1/v1/chat/completions", {"messages": HELLO})
        assert (status, body["error"]["code"]) == (503, "pool_away") and len(stack.engine.calls) == 2
        stack.pool = await FakePool().start(stack.pool.port)
        await asyncio.gather(*held)
        assert check_fidelity(stack.engines, stack.pool) == 2


async def test_a_call_that_gave_up_on_the_pool_is_kept_and_its_retry_is_no_second_turn(tmp_path: Path) -> None:
    async with running(tmp_path, timeout_s=0.5) as stack:
        await stack.client.chat("t0", HELLO)
        await stack.pool.stop()
        status, body = await stack.client.post("/t1/p1/v1/chat/completions", {"messages": HELLO})
        assert (status, body["error"]["code"]) == (503, "pool_away")
        stack.pool = await FakePool().start(stack.pool.port)
        for _ in range(40):
            await asyncio.sleep(0.1)
            if stack.pool.steps:
                break
        await stack.client.chat("t1", HELLO)
        assert len(stack.engine.calls) == 2 and list(stack.pool.steps["t1"]) == [0]


async def test_steps_that_wait_together_travel_together(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        await asyncio.gather(*(stack.client.chat(f"t{i}", HELLO) for i in range(60)))
        before = stack.pool.messages
        await asyncio.gather(*(stack.client.chat(f"u{i}", HELLO) for i in range(60)))
        assert stack.pool.messages - before < 45


async def test_one_refused_step_does_not_take_its_neighbours_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        stack.pool.refuse = "bad"
        answers = await asyncio.gather(
            *(stack.client.post(f"/{uid}/p1/v1/chat/completions", {"messages": HELLO}) for uid in ("a", "bad", "c"))
        )
        assert [status for status, _ in answers] == [200, 409, 200]
        assert answers[1][1]["error"]["code"] == "pool_refused"
