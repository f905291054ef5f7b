"""The same request again: a retry gets the recorded answer, a wish for another sample gets one."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from conftest import Stack, running
from test_fidelity import check_fidelity

HELLO = [{"role": "user", "content": "hello"}]
RETRY = {"x-stainless-retry-count": "1"}


async def test_a_client_that_timed_out_and_asks_again_joins_the_first_call(stack: Stack) -> None:
    stack.engine.delay_s = 0.6
    with pytest.raises(asyncio.TimeoutError):
        await stack.client.post(
            "/t1/p1/v1/chat/completions", {"messages": HELLO}, timeout=aiohttp.ClientTimeout(total=0.2)
        )
    await stack.client.chat("t1", HELLO)
    assert len(stack.engine.calls) == 1 and len(stack.pool.steps["t1"]) == 1


async def test_a_client_that_comes_back_after_the_answer_was_made_gets_it(stack: Stack) -> None:
    stack.engine.delay_s = 0.3
    with pytest.raises(asyncio.TimeoutError):
        await stack.client.post(
            "/t1/p1/v1/chat/completions", {"messages": HELLO}, timeout=aiohttp.ClientTimeout(total=0.1)
        )
    await asyncio.sleep(0.5)
    assert len(stack.pool.steps["t1"]) == 1, "the step is kept although its client has gone"
    await stack.client.chat("t1", HELLO)
    assert len(stack.engine.calls) == 1


async def test_a_declared_retry_gets_the_recorded_answer_and_the_replay_is_counted(stack: Stack) -> None:
    first = await stack.client.chat("t1", HELLO)
    _, again = await stack.client.post("/t1/p1/v1/chat/completions", {"messages": HELLO}, headers=RETRY)
    assert again == first and len(stack.engine.calls) == 1
    assert "rlctl_gateway_replays_total 1" in (await stack.client.get("/metrics"))[1]


async def test_asking_the_same_again_without_need_is_another_sample(stack: Stack) -> None:
    await stack.client.chat("t1", HELLO)
    await stack.client.chat("t1", HELLO)
    assert [step.fork_reason for step in stack.pool.steps["t1"].values()] == ["", "parallel"]


async def test_a_failed_call_leaves_no_step_and_may_be_tried_again(stack: Stack) -> None:
    stack.engine.status = 500
    status, body = await stack.client.post("/t1/p1/v1/chat/completions", {"messages": HELLO})
    assert status == 502 and body["error"]["type"] == "server_error"
    stack.engine.status = 200
    await stack.client.chat("t1", HELLO)
    assert list(stack.pool.steps["t1"]) == [0] and stack.pool.steps["t1"][0].fork_reason == ""


async def test_a_call_that_fails_beside_one_that_works_leaves_no_hole_in_the_indices(stack: Stack) -> None:
    stack.engine.delay_s, stack.engine.die = 0.2, 2
    doomed = asyncio.create_task(stack.client.post("/t1/p1/v1/chat/completions", {"messages": HELLO}))
    await asyncio.sleep(0.1)
    await asyncio.gather(
        doomed, stack.client.chat("t1", [{"role": "user", "content": "other"}]), return_exceptions=True
    )
    await stack.client.chat("t1", [{"role": "user", "content": "third"}])
    await stack.client.post("/t1/p1/v1/complete_trajectory", {})
    steps = stack.pool.steps["t1"]
    assert sorted(steps) == list(range(len(steps))) and stack.pool.ends["t1"].num_steps == len(steps)


async def test_another_engine_answers_when_one_dies_mid_request(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as stack:
        await asyncio.gather(*(stack.client.chat(f"t{i}", HELLO) for i in range(8)))
        for engine in stack.engines:
            assert engine.calls, "load is spread"
        stack.engines[0].delay_s = 0.3
        calls = asyncio.gather(*(stack.client.chat(f"t{i}", [{"role": "user", "content": "again"}]) for i in range(8)))
        await asyncio.sleep(0.15)
        await stack.engines[0].stop()
        await calls
        assert check_fidelity(stack.engines, stack.pool) == 16


async def test_an_engine_that_comes_back_serves_again(stack: Stack) -> None:
    port = int(stack.engine.url.rpartition(":")[2])
    await stack.engine.stop()
    status, body = await stack.client.post("/t1/p1/v1/chat/completions", {"messages": HELLO})
    assert (status, body["error"]["code"]) in ((502, "engine_died"), (503, "no_engine"))
    await stack.engine.start(port)
    for _ in range(100):
        if (await stack.client.get("/ready"))[0] == 200:
            break
        await asyncio.sleep(0.05)
    await stack.client.chat("t1", HELLO)
