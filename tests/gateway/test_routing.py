"""Which engine gets a call."""

import asyncio
from pathlib import Path

from conftest import Stack, running
from fakes import FakeEngine
from test_fidelity import check_fidelity, talk

from rlctl.gateway.routing.router import OPEN_S, PRESSED, SLACK, STRIKES, Router

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/t1/p1/v1/chat/completions"


def test_a_trajectory_stays_where_its_cache_is_and_a_group_gathers_up_to_the_slack() -> None:
    router = Router(["a", "b"])
    first = router.choose("t0", "p", 0)
    assert first is not None and router.choose("t1", "p", 0) is first, "a sibling"
    other = router.choose("u0", "q", 0)
    assert other is not first, "least sessions"
    first.running = SLACK + 1
    assert router.choose("t2", "p", 0) is other and router.choose("t0", "p", 0) is first


def test_the_breaker_opens_after_some_failures_in_a_row_and_for_longer_each_time() -> None:
    router = Router(["a", "b"])
    home = router.choose("t", "p", 0)
    assert home is not None
    for _ in range(STRIKES - 1):
        home.failed(10)
    assert router.choose("t", "p", 10) is home
    home.failed(10)
    other = router.choose("t", "p", 10)
    assert other is not home and not home.able(10 + OPEN_S / 2) and home.able(10 + OPEN_S)
    home.failed(20)
    assert not home.able(20 + OPEN_S) and home.able(20 + 2 * OPEN_S)
    home.answered()
    assert home.able(0)


def test_when_no_engine_is_able_one_is_tried_all_the_same() -> None:
    router = Router(["a"])
    router.engines[0].up = False
    assert router.choose("t", "p", 0) is router.engines[0]
    assert router.choose("t", "p", 0, avoid=router.engines) is None


def test_a_removed_engine_is_forgotten() -> None:
    router = Router(["a", "b"])
    home = router.choose("t", "p", 0)
    assert home is not None
    router.remove(home.url)
    assert router.choose("t", "p", 0) is router.engines[0] and home not in router.engines
    router.add("c/")
    router.add("c")
    assert [(one.url, one.up) for one in router.engines][1:] == [("c", False)]


async def test_full_engines_are_a_429_with_a_time_to_come_back(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rlctl.gateway.routing.upstream.HEALTH_EVERY_S", 0.05)
    async with running(tmp_path, max_engine_waiting=5) as stack:
        await stack.client.chat("t1", HELLO)
        stack.engine.waiting = 5
        await asyncio.sleep(0.3)
        async with stack.client.http.post(f"{stack.client.url}{CHAT}", json={"messages": HELLO}) as response:
            assert response.status == 429 and response.headers["Retry-After"] == "2"
            assert (await response.json())["error"]["code"] == "engines_full"
        stack.engine.waiting = 4
        await asyncio.sleep(0.3)
        await stack.client.chat("t1", HELLO)


def test_new_trajectories_go_past_an_engine_whose_kv_cache_is_pressed() -> None:
    router = Router(["a", "b"])
    first = router.choose("t0", "p", 0)
    assert first is not None
    first.kv = PRESSED + 0.01
    other = router.choose("t1", "p", 0)
    assert other is not first, "although a sibling is there"
    assert router.choose("t0", "p", 0) is first, "its own cache is there"
    assert other is not None
    other.kv, other.running = PRESSED + 0.01, 1
    assert router.choose("t2", "q", 0) is first, "both are: the load decides"
    assert router.full(0, 9, 1.0) == "" and "KV cache" in router.full(0, 9, PRESSED)
    other.kv, other.waiting = 0.0, 9
    assert "KV cache" in router.full(0, 9, PRESSED), "one pressed, one with a full queue"
    first.kv, first.waiting = 0.0, 9
    assert "queue" in router.full(0, 9, PRESSED)
    first.waiting = 8
    assert router.full(0, 9, PRESSED) == ""
    first.up = other.up = False
    assert router.full(0, 9, PRESSED) == "", "none is able: that is another error"


async def test_calls_wait_outside_while_every_kv_cache_is_full(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rlctl.gateway.routing.upstream.HEALTH_EVERY_S", 0.05)
    async with running(tmp_path, engines=2, max_kv_usage=0.8) as stack:
        stack.engines[0].kv = 0.95
        await asyncio.sleep(0.3)
        for number in range(6):
            await stack.client.chat(f"t{number}", HELLO)
        assert len(stack.engines[1].calls) == 6, "the pressed one gets nothing new"
        stack.engines[1].kv = 0.85
        await asyncio.sleep(0.3)
        async with stack.client.http.post(f"{stack.client.url}{CHAT}", json={"messages": HELLO}) as response:
            assert response.status == 429 and response.headers["Retry-After"] == "2"
            assert "80% of its KV cache" in (await response.json())["error"]["message"]
        stack.engines[0].kv = 1e-05
        await asyncio.sleep(0.3)
        await stack.client.chat("t9", HELLO)
        assert len(stack.engines[0].calls) == 1
        metrics = (await stack.client.get("/metrics"))[1]
        assert f'rlctl_gateway_engine_kv{{engine="{stack.engines[1].url}"}} 0.85' in metrics


async def test_an_engine_that_fails_its_calls_is_left_alone_for_a_while(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as stack:
        stack.engines[0].status = 500
        for number in range(12):
            path = f"/t{number}/p{number}/v1/chat/completions"
            assert (await stack.client.post(path, {"messages": HELLO}))[0] == 200
        metrics = (await stack.client.get("/metrics"))[1]
        assert f'rlctl_gateway_engine_failures{{engine="{stack.engines[0].url}"}} {STRIKES}' in metrics


async def talk_later(stack: Stack, seed: int) -> None:
    """Begins when an engine has been added and another one has been killed."""
    await asyncio.sleep(1.2)
    await talk(stack, f"t{seed}", seed)


async def test_engines_are_added_killed_and_removed_under_load_and_no_step_is_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rlctl.gateway.routing.upstream.HEALTH_EVERY_S", 0.05)
    async with running(tmp_path, engines=2) as stack:
        for engine in stack.engines:
            engine.delay_s = 0.05
        talks = [asyncio.create_task(talk(stack, f"t{seed}", seed)) for seed in range(24)]
        late = [asyncio.create_task(talk_later(stack, seed)) for seed in range(24, 36)]
        await asyncio.sleep(0.3)
        third = await FakeEngine(7).start()
        third.delay_s = 0.05
        status, body = await stack.client.post("/engines", {"add": [third.url]})
        assert status == 200 and len(body["engines"]) == 3
        await asyncio.sleep(0.4)
        await stack.engines[0].stop()
        await asyncio.sleep(0.3)
        assert len((await stack.client.post("/engines", {"remove": [stack.engines[0].url]}))[1]["engines"]) == 2
        await asyncio.gather(*talks, *late)
        assert third.calls, "the new one has taken part"
        check_kept_where_answered(stack, third)
        await third.stop()
        assert (await stack.client.post("/engines", {"add": ["ftp://x"]}))[0] == 400


def check_kept_where_answered(stack: Stack, third: FakeEngine) -> None:
    """As check_fidelity; an answer that died with its engine on the way is in its list and not in the pool."""
    kept = {(uid, step.response_ids) for uid, steps in stack.pool.steps.items() for step in steps.values()}
    lost = [
        call
        for call in stack.engines[0].calls
        if any(
            (call["session"], b"".join(i.to_bytes(4, "little") for i in ids)) not in kept for ids in call["responses"]
        )
    ]
    stack.engines[0].calls = [call for call in stack.engines[0].calls if call not in lost]
    assert len(lost) <= 24 and check_fidelity([*stack.engines, third], stack.pool) > 50
