"""Tool calls in a model's text."""

import json

from conftest import Stack
from model import tokenizer
from test_fidelity import check_fidelity

from rlctl.gateway.text.tools import family_of, hermes, llama3, mistral
from rlctl.wire.arrays import unpack_ids

TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}]


def test_calls_are_taken_out_and_the_rest_is_content() -> None:
    content, calls = hermes('I go.\n<tool_call>\n{"name": "move", "arguments": {"to": 3}}\n</tool_call>')
    assert content == "I go."
    assert calls[0]["function"]["name"] == "move" and json.loads(calls[0]["function"]["arguments"]) == {"to": 3}


def test_a_call_that_does_not_parse_stays_content() -> None:
    for text in ("<tool_call>{nonsense</tool_call>", '<tool_call>{"arguments": 1}</tool_call>', "</tool_call> a"):
        assert hermes(text) == (text, [])


def test_two_calls_and_one_cut_before_its_closing_tag() -> None:
    _, calls = hermes('<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b", "arguments": {}}')
    assert [call["function"]["name"] for call in calls] == ["a", "b"]
    assert calls[0]["id"] != calls[1]["id"]


def names_and_arguments(calls: list) -> list:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_llama_writes_the_bare_object_and_separates_several_by_a_semicolon() -> None:
    content, calls = llama3('<|python_tag|>{"name": "a", "parameters": {"x": "é"}}; {"name": "b", "parameters": {}}')
    assert content == "" and names_and_arguments(calls) == [("a", {"x": "é"}), ("b", {})]
    for text in ('{"name": "a"} and so on', '{"x": 1}', "It is {", ""):
        assert llama3(text) == (text, [])


def test_mistral_writes_a_list_or_name_and_arguments() -> None:
    _, calls = mistral('[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]')
    assert names_and_arguments(calls) == [("a", {"x": 1}), ("b", {})]
    content, calls = mistral('Well. [TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}')
    assert content == "Well." and names_and_arguments(calls) == [("a", {"x": 1}), ("b", {})]
    for text in ("[TOOL_CALLS]nonsense", '[TOOL_CALLS]a[ARGS]{"x":', "no call"):
        assert mistral(text) == (text, [])


def test_the_family_is_what_the_template_teaches() -> None:
    assert family_of("... <tool_call> ...") == "hermes" and family_of("{{ x }}") == "none"
    assert family_of("[TOOL_CALLS]") == "mistral" and family_of("<|python_tag|>") == "llama3"


async def test_a_required_call_is_begun_for_the_model_and_only_the_rest_is_sampled(stack: Stack) -> None:
    stack.engine.script = ['{"to": 4}}</tool_call>', "done", 'move", "arguments": {}}</tool_call>']
    question = {"role": "user", "content": "go"}
    named = {"type": "function", "function": {"name": "move"}}
    first = await stack.client.chat("t1", [question], tools=TOOLS, tool_choice=named)
    message = first["choices"][0]["message"]
    assert names_and_arguments(message["tool_calls"]) == [("move", {"to": 4})] and message["content"] is None
    asked = tokenizer().decode(stack.engine.calls[0]["prompt"], skip_special_tokens=False)
    assert asked.endswith('assistant\n<tool_call>\n{"name": "move", "arguments": ')
    history = [question, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}]
    await stack.client.chat("t1", history, tools=TOOLS)
    assert stack.pool.steps["t1"][1].parent == 0 and check_fidelity(stack.engines, stack.pool) == 2
    any_tool = await stack.client.chat("t2", [question], tools=TOOLS, tool_choice="required")
    assert any_tool["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_tool_session_extends_the_models_own_words_whatever_the_template_would_write(stack: Stack) -> None:
    odd = '<tool_call>{"arguments":{"b":  1,"a":"é"},"name":"move"}</tool_call>'
    stack.engine.script = [odd, "done"]
    question = {"role": "user", "content": "go"}
    first = await stack.client.chat("t1", [question], tools=TOOLS)
    choice = first["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    call = choice["message"]["tool_calls"][0]
    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)  # as clients do
    result = {"role": "tool", "tool_call_id": call["id"], "content": "moved"}
    await stack.client.chat("t1", [question, choice["message"], result], tools=TOOLS)
    one, two = stack.engine.calls
    assert two["prompt"][: len(one["prompt"]) + len(one["responses"][0])] == one["prompt"] + one["responses"][0]
    step = stack.pool.steps["t1"][1]
    assert (step.parent, step.fork_reason) == (0, "")
    assert unpack_ids(step.prompt_ids).tolist() == two["prompt"][len(one["prompt"]) + len(one["responses"][0]) :]


async def test_tool_choice_none_leaves_the_text_alone(stack: Stack) -> None:
    text = '<tool_call>{"name": "move"}</tool_call>'
    stack.engine.script = [text]
    body = await stack.client.chat("t1", [{"role": "user", "content": "go"}], tools=TOOLS, tool_choice="none")
    assert body["choices"][0]["message"]["content"] == text and body["choices"][0]["finish_reason"] == "stop"
