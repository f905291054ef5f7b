"""The official `anthropic` client, unmodified."""

import pytest
from conftest import Stack
from test_fidelity import check_fidelity

anthropic = pytest.importorskip("anthropic")
TOOLS = [{"name": "move", "description": "Go.", "input_schema": {"type": "object", "properties": {}}}]
CALL = 'Well. <tool_call>{"name": "move", "arguments": {"to": 2}}</tool_call>'
NOW = {"role": "user", "content": "now"}


@pytest.fixture
async def agent(stack: Stack):
    _, begun = await stack.client.post("/init_trajectory")
    base = begun["base_url"].removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        client.uid = begun["trajectory_uid"]
        yield client


async def ask(agent, messages: list, **fields):
    return await agent.messages.create(model="claude", max_tokens=60, messages=messages, **fields)


async def test_a_multi_turn_tool_session(stack: Stack, agent) -> None:
    stack.engine.script = [CALL, "There.", "Bye."]
    first = await ask(agent, [NOW], tools=TOOLS, system="Go on.")
    text, use = first.content
    assert (text.text, use.name, use.input, first.stop_reason) == ("Well.", "move", {"to": 2}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "moved"}]}
    history = [NOW, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await ask(agent, history, tools=TOOLS, system="Go on.")
    assert second.content[0].text == "There." and second.stop_reason == "end_turn"
    history += [{"role": "assistant", "content": second.content}, NOW]
    await ask(agent, history, tools=TOOLS, system="Go on.")
    assert [step.parent for step in stack.pool.steps[agent.uid].values()] == [-1, 0, 1]
    assert check_fidelity(stack.engines, stack.pool) == 3


async def test_streaming_gives_the_same_message(stack: Stack, agent) -> None:
    stack.engine.script = [CALL]
    async with agent.messages.stream(model="claude", max_tokens=60, messages=[NOW], tools=TOOLS) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(texts) == "Well." and final.content[1].input == {"to": 2} and final.stop_reason == "tool_use"
    assert final.usage.output_tokens == len(stack.engine.calls[0]["responses"][0])
    history = [NOW, {"role": "assistant", "content": final.content}, NOW]
    await ask(agent, history, tools=TOOLS)
    assert stack.pool.steps[agent.uid][1].parent == 0


async def test_tokens_are_counted_without_beginning_anything(stack: Stack, agent) -> None:
    counted = await agent.messages.count_tokens(model="claude", messages=[NOW], tools=TOOLS, system="Go on.")
    first = await ask(agent, [NOW], tools=TOOLS, system="Go on.")
    assert counted.input_tokens == first.usage.input_tokens == len(stack.engine.calls[0]["prompt"])


async def test_parameters_reach_the_engine(stack: Stack, agent) -> None:
    stack.engine.script = ['{"to": 4}}</tool_call>']
    got = await ask(
        agent,
        [NOW],
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "move"},
        extra_body={"top_k": 7},
        stop_sequences=["zz"],
    )
    asked = stack.engine.calls[0]["asked"]
    assert (asked["top_k"], asked["stop"], asked["max_tokens"]) == (7, ["zz"], 60)
    assert got.content[0].input == {"to": 4}


async def test_errors_become_the_clients_own_exceptions(stack: Stack, agent) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match="type 'image'") as caught:
        await ask(agent, [{"role": "user", "content": [image]}])
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="thinking"):
        await ask(agent, [NOW], thinking={"type": "enabled", "budget_tokens": 1024})
    with pytest.raises(anthropic.BadRequestError, match="runs at the provider"):
        await ask(agent, [NOW], tools=[{"type": "web_search_20250305", "name": "web_search"}])
    with pytest.raises(anthropic.BadRequestError, match="at the end"):
        await ask(agent, [NOW, {"role": "assistant", "content": "I"}])
    stack.engine.status = 429
    with pytest.raises(anthropic.RateLimitError):
        await ask(agent, [NOW])
    assert stack.pool.steps[agent.uid] == {}
