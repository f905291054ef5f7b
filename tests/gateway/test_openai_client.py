"""The official `openai` client, unmodified."""

import json

import pytest
from conftest import Stack
from test_fidelity import check_fidelity

openai = pytest.importorskip("openai")
TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
async def agent(stack: Stack):
    _, begun = await stack.client.post("/init_trajectory")
    async with openai.AsyncOpenAI(base_url=begun["base_url"], api_key="none", max_retries=0) as client:
        client.uid = begun["trajectory_uid"]
        yield client


async def test_a_multi_turn_tool_session(stack: Stack, agent) -> None:
    stack.engine.script = ['Well. <tool_call>{"name": "move", "arguments": {"to": 2}}</tool_call>', "There."]
    messages = [{"role": "developer", "content": "Go."}, {"role": "user", "content": "now"}]
    first = await agent.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS)
    call = first.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"to": 2} and first.choices[0].finish_reason == "tool_calls"
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "moved"}]
    second = await agent.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "There." and second.model == "gpt-4o"
    assert stack.pool.steps[agent.uid][1].parent == 0
    assert check_fidelity(stack.engines, stack.pool) == 2


async def test_streaming_gives_the_same_and_the_next_turn_extends_it(stack: Stack, agent) -> None:
    stack.engine.script = ["Größe 🙂 Left", '<tool_call>{"name": "move", "arguments": {}}</tool_call>']
    messages = [{"role": "user", "content": "now"}]
    stream = await agent.chat.completions.create(
        model="m", messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Größe 🙂 Left" and chunks[-1].usage.completion_tokens == len(stack.engine.calls[0]["responses"][0])
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    async with agent.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "move"
    assert stack.pool.steps[agent.uid][1].parent == 0


async def test_logprobs_choices_and_completions(stack: Stack, agent) -> None:
    messages = [{"role": "user", "content": "now"}]
    got = await agent.chat.completions.create(
        model="m", messages=messages, n=3, logprobs=True, seed=5, stop=["x"], temperature=0.7, max_completion_tokens=9
    )
    call = stack.engine.calls[0]
    asked = {key: call["asked"][key] for key in ("n", "seed", "stop", "temperature", "max_tokens")}
    assert asked == {"n": 3, "seed": 5, "stop": ["x"], "temperature": 0.7, "max_tokens": 9}
    assert [[round(t.logprob, 4) for t in choice.logprobs.content] for choice in got.choices] == call["logprobs"]
    assert [s.fork_reason for s in stack.pool.steps[agent.uid].values()] == ["", "choice", "choice"]
    stream = await agent.completions.create(model="m", prompt="Hello", stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream][-1] in ("stop", "length")
    assert [model.id async for model in agent.models.list()] == ["policy"]


async def test_errors_become_the_clients_own_exceptions(stack: Stack, agent) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format") as caught:
        await agent.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
        )
    assert caught.value.param == "response_format"
    stack.engine.status = 429
    with pytest.raises(openai.RateLimitError):
        await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


async def test_its_own_retries_after_a_timeout_make_no_double_turn(stack: Stack, agent) -> None:
    stack.engine.delay_s = 0.5
    patient = agent.with_options(timeout=0.3, max_retries=3)
    await patient.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert len(stack.engine.calls) == 1 and len(stack.pool.steps[agent.uid]) == 1
