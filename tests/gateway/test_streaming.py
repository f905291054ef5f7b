"""Streams: tokens as they are sampled, the end only when the pool has the Step, errors in the dialect's shape."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Stack, running
from model import CHATML
from test_fidelity import TOOL, check_fidelity

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/t1/p1/v1/chat/completions"
THINKING = CHATML + "{# reasoning_content #}"


async def stream(stack: Stack, path: str, body: dict[str, Any], **kwargs: Any) -> list[tuple[float, dict[str, Any]]]:
    """(seconds since the request, event) of a stream; `[DONE]` is left out."""
    begun, found, data = time.monotonic(), [], b""
    async with stack.client.http.post(f"{stack.client.url}{path}", json=body | {"stream": True}, **kwargs) as response:
        assert response.status == 200 and response.content_type == "text/event-stream", await response.text()
        async for chunk in response.content.iter_any():
            *whole, data = (data + chunk).split(b"\n\n")
            for event in whole:
                line = event.splitlines()[-1].removeprefix(b"data: ")
                if line != b"[DONE]":
                    found.append((time.monotonic() - begun, json.loads(line)))
    return found


def content(events: list[tuple[float, dict[str, Any]]], field: str = "content", index: int = 0) -> str:
    choices = [choice for _, event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(field) or "" for choice in choices)


async def test_tokens_come_as_they_are_sampled_and_are_the_engines(stack: Stack) -> None:
    stack.engine.script, stack.engine.pause_s = ["Größe 🙂 and a long way to the goal"], 0.05
    events = await stream(stack, CHAT, {"messages": HELLO})
    assert content(events) == "Größe 🙂 and a long way to the goal"
    times = [at for at, event in events if event["choices"][0]["delta"].get("content")]
    assert len(times) > 5 and times[-1] - times[0] > 0.2
    assert check_fidelity(stack.engines, stack.pool) == 1 and stack.engine.calls[0]["asked"]["stream"]
    history = [*HELLO, {"role": "assistant", "content": content(events)}, {"role": "user", "content": "on"}]
    await stream(stack, CHAT, {"messages": history})
    assert stack.pool.steps["t1"][1].parent == 0 and check_fidelity(stack.engines, stack.pool) == 2


async def test_several_choices_with_logprobs_and_tools_equal_the_whole_answer(stack: Stack) -> None:
    stack.engine.script = ['x <tool_call>{"name": "move", "arguments": {"to": 1}}</tool_call>', "plain"]
    body = {"messages": HELLO, "tools": [TOOL], "n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
    events = await stream(stack, CHAT, body)
    assert (content(events), content(events, index=1)) == ("x", "plain")
    deltas = [choice["delta"] for _, event in events for choice in event["choices"]]
    assert [c["function"]["name"] for delta in deltas for c in delta.get("tool_calls", ())] == ["move"]
    values: list[list[float]] = [[], []]
    for _, event in events:
        for choice in event["choices"]:
            values[choice["index"]] += [t["logprob"] for t in (choice.get("logprobs") or {"content": []})["content"]]
    assert values == stack.engine.calls[0]["logprobs"]
    assert events[-1][1]["usage"]["completion_tokens"] == sum(map(len, stack.engine.calls[0]["responses"]))


async def test_reasoning_comes_apart(tmp_path: Path) -> None:
    async with running(tmp_path, THINKING) as stack:
        stack.engine.script = ["<think>left or right</think>\nLeft"] * 3
        events = await stream(stack, CHAT, {"messages": HELLO})
        assert (content(events, "reasoning_content"), content(events)) == ("left or right", "Left")
        message = (await stack.client.chat("t2", HELLO))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("left or right", "Left")
        for kept in ({"role": "assistant", "content": "Left"}, message):
            await stack.client.chat("t2", [*HELLO, kept, {"role": "user", "content": "on"}])
        assert [step.parent for step in stack.pool.steps["t2"].values()] == [-1, 0, 0]
        whole = await stack.client.chat("t3", HELLO, separate_reasoning=False)
        assert "reasoning_content" not in whole["choices"][0]["message"]


async def test_the_end_of_a_stream_waits_for_the_pool(stack: Stack) -> None:
    stack.pool.delay_s = 0.5
    events = await stream(stack, CHAT, {"messages": HELLO})
    assert events[-1][0] > 0.5 and events[-1][1]["choices"][0]["finish_reason"] == "stop"
    assert len(stack.pool.steps["t1"]) == 1


async def test_an_engine_that_dies_before_the_first_token_is_replaced_and_later_ends_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as stack:
        for engine in stack.engines:
            engine.script = ["a longer answer than one chunk"] * 2
        stack.engines[0].die = stack.engines[1].die = 1
        assert content(await stream(stack, CHAT, {"messages": HELLO})) == "a longer answer than one chunk"
        stack.engines[0].cut = stack.engines[1].cut = 1
        events = await stream(stack, "/t2/p1/v1/chat/completions", {"messages": HELLO})
        assert events[-1][1]["error"]["code"] == "engine_died"
        assert not stack.pool.steps["t2"], "no Step of an answer that nobody got"


async def test_a_call_that_fails_before_it_says_anything_is_a_plain_error(stack: Stack) -> None:
    stack.engine.status = 429
    status, body = await stack.client.post(CHAT, {"messages": HELLO, "stream": True})
    assert status == 429 and body["error"]["type"] == "rate_limit_error"
    status, body = await stack.client.post(CHAT, {"messages": HELLO, "stream": True, "top_p": 5})
    assert status == 400


async def test_a_client_that_leaves_in_the_middle_and_asks_again_gets_the_same_answer(stack: Stack) -> None:
    stack.engine.script, stack.engine.pause_s = ["one two three four five six"], 0.05
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.15):
            await stream(stack, CHAT, {"messages": HELLO})
    assert content(await stream(stack, CHAT, {"messages": HELLO})) == "one two three four five six"
    assert len(stack.engine.calls) == 1 and len(stack.pool.steps["t1"]) == 1


async def test_a_response_format_goes_to_engines_that_have_it_and_is_else_a_400(stack: Stack) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    status, body = await stack.client.post(CHAT, {"messages": HELLO, "response_format": schema})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "response_format", "unsupported_parameter")
    stack.engine.formats = True
    await stack.client.chat("t1", HELLO, response_format=schema)
    assert stack.engine.calls[0]["asked"]["response_format"] == schema
