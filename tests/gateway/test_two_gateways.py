"""Two gateways before one pool, and a trajectory that goes to both: nothing counts as a repeat, nothing is lost."""

from pathlib import Path

from conftest import running
from test_real_pool import start_pool, unscored

from rlctl.wire.ports import free_port
from rlctl.wire.sockets import Ask

HELLO = {"role": "user", "content": "Hello"}
PATH = "/t/p1/v1/chat/completions"


async def test_a_conversation_that_alternates_between_gateways_is_refused_and_its_first_half_goes_on(
    tmp_path: Path,
) -> None:
    port = free_port()
    process = start_pool(tmp_path, port)
    ask = Ask(f"tcp://127.0.0.1:{port}", retry_s=0.5)
    try:
        async with running(tmp_path / "a", pool_url=ask.url) as a, running(tmp_path / "b", pool_url=ask.url) as b:
            a.engine.script, b.engine.script = ["one", "three"], ["two"]
            talk = [HELLO, (await a.client.chat("t", [HELLO]))["choices"][0]["message"], HELLO]
            for retry in ("0", "1"):
                headers = {"x-stainless-retry-count": retry}
                status, body = await b.client.post(PATH, {"messages": talk}, headers=headers)
                assert (status, body["error"]["code"]) == (409, "pool_refused")
                assert "two gateways serve this trajectory" in body["error"]["message"]
            assert len(b.engine.calls) == 1  # the retry was no second call
            assert (await b.client.post("/t/p1/v1/complete_trajectory", {}))[0] == 409  # it has not seen the step
            await a.client.chat("t", talk)
            assert (await a.client.post("/t/p1/v1/complete_trajectory", {}))[0] == 200
            (trajectory,) = await unscored(ask, 1)
            sampled = [ids for call in a.engine.calls for ids in call["responses"]]
            assert [list(memoryview(step.response_ids).cast("i")) for step in trajectory.steps] == sampled
    finally:
        ask.close()
        process.kill()
        process.wait()


async def test_a_retry_at_the_same_gateway_is_not_doubled_and_other_trajectories_are_not_held_up(
    tmp_path: Path,
) -> None:
    port = free_port()
    process = start_pool(tmp_path, port)
    ask = Ask(f"tcp://127.0.0.1:{port}", retry_s=0.5)
    try:
        async with running(tmp_path / "a", pool_url=ask.url) as a, running(tmp_path / "b", pool_url=ask.url) as b:
            await a.client.chat("t", [HELLO])
            again = {"x-stainless-retry-count": "1"}
            status, _ = await a.client.post(PATH, {"messages": [HELLO]}, headers=again)
            assert status == 200 and len(a.engine.calls) == 1
            await b.client.chat("u", [HELLO])
            for stack, uid in ((a, "t"), (b, "u")):
                assert (await stack.client.post(f"/{uid}/p1/v1/complete_trajectory", {}))[0] == 200
            assert sorted(len(one.steps) for one in await unscored(ask, 2)) == [1, 1]
    finally:
        ask.close()
        process.kill()
        process.wait()
