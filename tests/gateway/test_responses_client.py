"""OpenAI's responses, by the official client and by an agent framework that speaks them."""

import json

import pytest
from conftest import Stack
from test_fidelity import check_fidelity

openai = pytest.importorskip("openai")
TOOLS = [{"type": "function", "name": "move", "parameters": {"type": "object", "properties": {}}, "strict": False}]
CALL = 'Well. <tool_call>{"name": "move", "arguments": {"to": 2}}</tool_call>'


@pytest.fixture
async def agent(stack: Stack):
    _, begun = await stack.client.post("/init_trajectory")
    async with openai.AsyncOpenAI(base_url=begun["base_url"], api_key="none", max_retries=0) as client:
        client.uid = begun["trajectory_uid"]
        yield client


async def test_a_multi_turn_tool_session_with_items_sent_back(stack: Stack, agent) -> None:
    stack.engine.script = [CALL, "There."]
    history = [{"role": "user", "content": "now"}]
    first = await agent.responses.create(model="m", input=history, tools=TOOLS, instructions="Go.")
    call = first.output[1]
    assert (first.output_text, call.name, json.loads(call.arguments)) == ("Well.", "move", {"to": 2})
    history += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "moved"}]
    second = await agent.responses.create(model="m", input=history, tools=TOOLS, instructions="Go.")
    assert (second.output_text, second.status) == ("There.", "completed")
    assert stack.pool.steps[agent.uid][1].parent == 0 and check_fidelity(stack.engines, stack.pool) == 2


async def test_a_previous_response_is_followed(stack: Stack, agent) -> None:
    stack.engine.script = [CALL, "There."]
    first = await agent.responses.create(model="m", input="now", tools=TOOLS)
    result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "moved"}
    await agent.responses.create(model="m", input=[result], tools=TOOLS, previous_response_id=first.id)
    assert stack.pool.steps[agent.uid][1].parent == 0
    with pytest.raises(openai.NotFoundError, match="resp_x"):
        await agent.responses.create(model="m", input="x", previous_response_id="resp_x")


async def test_streaming_gives_the_same_response(stack: Stack, agent) -> None:
    stack.engine.script = [CALL]
    async with agent.responses.stream(model="m", input="now", tools=TOOLS) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == "Well." and json.loads(final.output[1].arguments) == {"to": 2}
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    history = [{"role": "user", "content": "now"}, *final.output, {"role": "user", "content": "on"}]
    await agent.responses.create(model="m", input=history, tools=TOOLS)
    assert stack.pool.steps[agent.uid][1].parent == 0


async def test_what_cannot_be_honoured_is_refused(stack: Stack, agent) -> None:
    for fields in ({"background": True}, {"truncation": "auto"}, {"tools": [{"type": "web_search"}]},
                   {"reasoning": {"effort": "high"}}, {"input": [{"type": "image_generation_call"}]}):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=next(iter(fields))):
            await agent.responses.create(**{"model": "m", "input": "x", **fields})
    cut = await agent.responses.create(model="m", input="x", max_output_tokens=1)
    assert cut.usage.output_tokens == 1


async def test_an_agent_framework_runs_unmodified(stack: Stack, agent) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def move(to: int) -> str:
        """Go there."""
        return f"at {to}"

    for number, model in enumerate((agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel)):
        stack.engine.script = [CALL, "There."] * 2
        walker = agents.Agent(name="walker", instructions="Go.", tools=[move], model=model("m", openai_client=agent))
        result = await agents.Runner.run(walker, "now")
        assert result.final_output == "There."
        streamed = agents.Runner.run_streamed(walker, "again")
        assert [event async for event in streamed.stream_events()] and streamed.final_output == "There."
        steps = stack.pool.steps[agent.uid]
        base = number * 4
        assert [steps[base + i].parent for i in (1, 3)] == [base, base + 2]
    assert check_fidelity(stack.engines, stack.pool) == 8
