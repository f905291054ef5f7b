"""Routes around an episode and those of white-box agents."""

import asyncio
from pathlib import Path

from aiohttp import web
from conftest import Stack, running
from model import tokenizer

from rlctl.telemetry.metrics import read
from rlctl.wire.arrays import unpack_ids

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_an_episode_from_outside_init_register_calls_complete(stack: Stack) -> None:
    _, begun = await stack.client.post("/init_trajectory")
    uid, prompt = begun["trajectory_uid"], begun["prompt_uid"]
    assert begun["base_url"] == f"{stack.client.url}/{uid}/{prompt}/v1" and prompt != uid
    base = begun["base_url"].removeprefix(stack.client.url)
    registered = {"channel": "val", "metadata": {"level": 3, "name": "x"}}
    assert await stack.client.post(f"{base}/register_trajectory", registered) == (200, {"status": "ok"})
    assert (await stack.client.post(f"{base}/chat/completions", HELLO))[0] == 200
    facts = {"env_reward": 0.5, "success": True, "turn_rewards": [0.5], "extra": {"boxes": 1}}
    status, _ = await stack.client.post(f"{base}/complete_trajectory", {"reward": 1.0, "facts": facts})
    assert status == 200
    end = stack.pool.ends[uid]
    assert (end.num_steps, end.reward, end.channel, end.prompt_uid) == (1, 1.0, "val", prompt)
    assert end.facts.success and end.facts.extra == {"level": 3.0, "boxes": 1.0}
    assert stack.pool.steps[uid][0].channel == "val"


async def test_base_url_is_the_address_the_caller_used(stack: Stack) -> None:
    _, begun = await stack.client.post("/init_trajectory", {}, headers={"Host": "train.example:81"})
    assert begun["base_url"].startswith("http://train.example:81/")


async def test_completing_is_idempotent_and_ends_the_trajectory(stack: Stack) -> None:
    assert (await stack.client.post("/t1/p1/v1/complete_trajectory", {}))[0] == 404
    await stack.client.post("/t1/p1/v1/chat/completions", HELLO)
    both = await asyncio.gather(*(stack.client.post("/t1/p1/v1/complete_trajectory", {"reward": 1}) for _ in range(2)))
    later = await stack.client.post("/t1/p1/v1/complete_trajectory", {"reward": 2})
    assert [status for status, _ in (*both, later)] == [200, 200, 200]
    assert stack.pool.ends["t1"].reward == 1
    status, body = await stack.client.post("/t1/p1/v1/chat/completions", HELLO)
    assert (status, body["error"]["code"]) == (409, "trajectory_completed")
    assert "rlctl_gateway_sessions 0" in (await stack.client.get("/metrics"))[1]


async def test_the_end_waits_for_calls_in_flight_and_counts_their_steps(stack: Stack) -> None:
    stack.engine.delay_s = 0.3
    call = asyncio.create_task(stack.client.post("/t1/p1/v1/chat/completions", HELLO))
    await asyncio.sleep(0.1)
    await stack.client.post("/t1/p1/v1/complete_trajectory", {"status": "failed", "error": "gave up"})
    assert (await call)[0] == 200
    end = stack.pool.ends["t1"]
    assert (end.num_steps, end.status, end.facts.error) == (1, "failed", "gave up")


async def test_the_failed_end_of_a_trajectory_without_a_call_reaches_the_pool(stack: Stack) -> None:
    """Its group would else wait for the deadline."""
    stack.engine.status = 500
    assert (await stack.client.post("/other/p1/v1/chat/completions", HELLO))[0] == 502
    stack.pool.opened = {"t1"}
    body = {"status": "failed", "error": "no engine"}
    assert (await stack.client.post("/t1/p1/v1/complete_trajectory", body))[0] == 200
    end = stack.pool.ends["t1"]
    assert (end.num_steps, end.status, end.prompt_uid, end.facts.error) == (0, "failed", "p1", "no engine")
    assert (await stack.client.post("/t1/p1/v1/complete_trajectory", body))[0] == 200, "a repetition"
    status, answer = await stack.client.post("/t2/p1/v1/complete_trajectory", body)
    assert (status, answer["error"]["code"]) == (404, "trajectory_not_found") and "t2" not in stack.pool.ends


async def test_a_silent_trajectory_is_closed_as_failed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rlctl.gateway.server.SWEEP_EVERY_S", 0.1)
    async with running(tmp_path, session_timeout_s=0.3) as stack:
        await stack.client.post("/t1/p1/v1/chat/completions", HELLO)
        await asyncio.sleep(0.8)
        assert stack.pool.ends["t1"].status == "failed" and "no call for 0.3 s" in stack.pool.ends["t1"].facts.error
        assert "rlctl_gateway_silent_total 1" in (await stack.client.get("/metrics"))[1]
    rows = list(read(tmp_path / "metrics" / "gateway.jsonl"))
    assert rows[-1]["steps"] == 1 and rows[-1]["silent"] == 1 and rows[-1]["wall_s"]["engine"] > 0


async def test_generate_gives_ids_logprobs_and_versions_without_recording(stack: Stack) -> None:
    body = {"prompt_ids": [1, 2, 3], "sampling_params": {"temperature": 0.5, "max_tokens": 8, "logprobs": True}}
    status, answer = await stack.client.post("/generate", body)
    call = stack.engine.calls[0]
    assert status == 200 and call["prompt"] == [1, 2, 3] and call["asked"]["temperature"] == 0.5
    assert answer["token_ids"] == call["responses"][0] and answer["log_probs"] == call["logprobs"][0]
    assert [tuple(run) for run in answer["policy_versions"]] == call["versions"][0] and not stack.pool.steps
    status, answer = await stack.client.post("/generate", {"prompt_ids": [9999]})
    assert status == 400 and "prompt_ids" in answer["error"]["message"]


async def test_white_box_steps_are_checked_kept_once_and_complete_their_trajectory(stack: Stack) -> None:
    step = {
        "prompt_ids": [1, 2], "response_ids": [3], "rollout_log_probs": [-0.5], "trajectory_uid": "w1",
        "prompt_uid": "p1", "step_index": 0, "policy_version": 7, "reward": 0.25,
    }  # fmt: skip
    assert await stack.client.post("/submit_steps?channel=val", {"steps": [step]}) == (
        200,
        {"accepted": 1, "duplicate": 0},
    )
    last = step | {"step_index": 1, "is_last": True}
    assert (await stack.client.post("/submit_steps?channel=val", {"steps": [step, last]}))[1]["duplicate"] == 1
    kept = stack.pool.steps["w1"][0]
    assert (unpack_ids(kept.prompt_ids).tolist(), kept.versions, kept.reward, kept.channel) == (
        [1, 2],
        [(7, 1)],
        0.25,
        "val",
    )
    assert stack.pool.ends["w1"].num_steps == 2
    for wrong in (
        {"rollout_log_probs": [1.0, 2.0]},
        {"prompt_uid": "../x"},
        {"step_index": -1},
        {"response_ids": [-1]},
    ):
        status, answer = await stack.client.post("/submit_steps", {"steps": [step | wrong]})
        assert status == 400 and "steps[0]" in answer["error"]["message"]


async def test_compute_reward_is_passed_to_the_reward_service(tmp_path: Path) -> None:
    async def score(request: web.Request) -> web.Response:
        return web.json_response({"got": await request.json()})

    app = web.Application()
    app.router.add_post("/score", score)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with running(tmp_path, reward_url=f"http://127.0.0.1:{runner.addresses[0][1]}") as stack:
        assert await stack.client.post("/compute_reward", {"a": 1}) == (200, {"got": {"a": 1}})
        await runner.cleanup()
        assert (await stack.client.post("/compute_reward", {"a": 1}))[0] == 502


async def test_without_a_reward_service_the_error_says_what_to_do(stack: Stack) -> None:
    status, body = await stack.client.post("/compute_reward", {})
    assert status == 503 and "--reward" in body["error"]["message"]


async def test_raw_completions_take_text_and_ids_and_chain(stack: Stack) -> None:
    stack.engine.script = [" brown"]
    _, first = await stack.client.post("/t1/p1/v1/completions", {"prompt": "The quick", "return_token_ids": True})
    assert first["object"] == "text_completion" and first["choices"][0]["text"] == " brown"
    ids = tokenizer().encode("The quick").ids
    assert first["choices"][0]["prompt_token_ids"] == ids == stack.engine.calls[0]["prompt"]
    more = ids + first["choices"][0]["token_ids"] + [5]
    _, second = await stack.client.post("/t1/p1/v1/completions", {"prompt": [more], "max_tokens": 4, "logprobs": 0})
    assert len(second["choices"][0]["logprobs"]["token_logprobs"]) == second["usage"]["completion_tokens"]
    assert unpack_ids(stack.pool.steps["t1"][1].prompt_ids).tolist() == [5]


async def test_base_urls_begin_with_the_public_address_where_there_is_one(tmp_path: Path) -> None:
    async with running(tmp_path, public_url="https://door.example:8443/") as stack:
        _, begun = await stack.client.post("/init_trajectory", {"trajectory_uid": "t1", "prompt_uid": "p1"})
        assert begun["base_url"] == "https://door.example:8443/t1/p1/v1"
    async with running(tmp_path / "b") as stack:
        _, begun = await stack.client.post("/init_trajectory", {}, headers={"x-forwarded-proto": "https"})
        assert begun["base_url"].startswith(stack.client.url.replace("http://", "https://"))
