"""Whatever cannot be honoured is an error in OpenAI's shape that names it."""

from pathlib import Path

import pytest
from conftest import Stack, running

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/t1/p1/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "move"}}
REFUSED = [
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"logit_bias": {"5": 3}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "often", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "fly"}}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"function": 5}, "tools": [TOOL]}, "tool_choice"),
    ({"tools": [{}]}, "tools"),
    ({"tools": [{"type": "function", "function": []}]}, "tools"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
    ({"max_tokens": 65}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"n": 0}, "n"),
    ({"top_p": 0}, "top_p"),
    ({"stop": [""]}, "stop"),
    ({"seed": "x"}, "seed"),
    ({"frobnicate": 1}, "frobnicate"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": 5}]}, "messages"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"parallel_tool_calls": False, "tools": [{}]}, "parallel_tool_calls"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[str(fields)[:60] for fields, _ in REFUSED])
async def test_what_cannot_be_honoured_is_a_400_that_names_it(stack: Stack, fields: dict, named: str) -> None:
    status, body = await stack.client.post(CHAT, {"messages": HELLO, **fields})
    error = body["error"]
    assert status == 400 and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["param"] == named
    assert not stack.pool.steps


async def test_hostile_bodies_are_a_400(stack: Stack) -> None:
    for data in (b"", b"{", b"[]", b"\xff\xfe", b'{"messages": "x"}', b"[" * 10_000, b'{"messages":' + b"[" * 10_000):
        status, body = await stack.client.post(CHAT, data=data)
        assert status == 400 and body["error"]["type"] == "invalid_request_error"
        for path in ("/init_trajectory", "/generate", "/submit_steps", "/t1/p1/v1/completions"):
            if data or path != "/init_trajectory":
                assert (await stack.client.post(path, data=data))[0] == 400


async def test_paths_methods_and_sizes_have_their_statuses(tmp_path: Path) -> None:
    async with running(tmp_path, max_body_bytes=1000) as stack:
        for path in (
            "/",
            "/nothing",
            "/t1/p1/v1/nothing",
            "/t1/p1/v1/v1/v1/models",
            "/a%2Fb/p/v1/models",
            "/../p/v1/models",
        ):
            assert (await stack.client.get(path))[0] == 404, path
        assert (await stack.client.get(CHAT))[0] == 405
        assert (await stack.client.post("/health", {}))[0] == 405
        status, body = await stack.client.post(CHAT, {"messages": [{"role": "user", "content": "x" * 1000}]})
        assert (status, body["error"]["code"]) == (413, "body_too_long")

        async def drip():
            for _ in range(20):
                yield b"x" * 100

        assert (await stack.client.post(CHAT, data=drip()))[0] == 413


async def test_too_long_is_an_error_and_never_cut(tmp_path: Path) -> None:
    async with running(tmp_path, prompt_length=50, context=100) as stack:
        long = [{"role": "user", "content": "🙂" * 40}]
        status, body = await stack.client.post(CHAT, {"messages": long})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded") and "50" in body["error"]["message"]
        status, body = await stack.client.post("/t1/p1/v1/completions", {"prompt": [1] * 48, "max_tokens": 60})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        await stack.client.post("/t1/p1/v1/completions", {"prompt": [1] * 48})
        assert stack.engine.calls[-1]["asked"]["max_tokens"] == 52, "the default is what fits"


async def test_an_engines_refusal_is_passed_on_and_a_busy_engine_is_a_429(stack: Stack) -> None:
    for status, expected in ((400, 400), (429, 429), (503, 503), (500, 502)):
        stack.engine.status = status
        got, body = await stack.client.post(CHAT, {"messages": HELLO})
        assert got == expected and "the engine says no" in body["error"]["message"]


async def test_a_template_that_refuses_is_a_400_with_its_words(tmp_path: Path) -> None:
    async with running(tmp_path, "{{ raise_exception('roles must alternate') }}") as stack:
        status, body = await stack.client.post(CHAT, {"messages": HELLO})
        assert status == 400 and "roles must alternate" in body["error"]["message"]


async def test_one_trajectory_belongs_to_one_prompt(stack: Stack) -> None:
    await stack.client.chat("t1", HELLO)
    status, body = await stack.client.post("/t1/other/v1/chat/completions", {"messages": HELLO})
    assert (status, body["error"]["code"]) == (409, "prompt_mismatch")


async def test_an_engine_that_gives_no_versions_counts_as_the_version_it_reported(stack: Stack) -> None:
    stack.engine.version = None
    await stack.client.chat("t1", HELLO)
    step = stack.pool.steps["t1"][0]
    assert step.versions == [(3, len(step.response_ids) // 4)]
