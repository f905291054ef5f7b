"""Chat completions through the gateway: what the client gets, what the engine is asked, what the pool keeps."""

from conftest import Stack
from model import tokenizer

from rlctl.wire.arrays import unpack_floats, unpack_ids

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße aus 東京 🙂"}]


async def test_an_answer_has_the_openai_shape_and_no_end_token(stack: Stack) -> None:
    stack.engine.script = ["Right"]
    body = await stack.client.chat("t1", HELLO)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Right", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    prompt = stack.engine.calls[0]["prompt"]
    response = stack.engine.calls[0]["responses"][0]
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert body["usage"]["completion_tokens"] == len(response)


async def test_the_pool_keeps_exactly_what_the_engine_sampled(stack: Stack) -> None:
    await stack.client.chat("t1", HELLO)
    call, step = stack.engine.calls[0], stack.pool.steps["t1"][0]
    assert unpack_ids(step.prompt_ids).tolist() == call["prompt"]
    assert unpack_ids(step.response_ids).tolist() == call["responses"][0]
    assert [round(float(x), 4) for x in unpack_floats(step.logprobs)] == call["logprobs"][0]
    assert step.versions == call["versions"][0]
    assert (step.parent, step.fork_reason, step.prompt_uid, step.step_index) == (-1, "", "p1", 0)


async def test_the_second_turn_encodes_only_what_is_new(stack: Stack) -> None:
    first = await stack.client.chat("t1", HELLO)
    history = [*HELLO, first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    await stack.client.chat("t1", history)
    one, two = stack.engine.calls
    assert two["prompt"][: len(one["prompt"]) + len(one["responses"][0])] == one["prompt"] + one["responses"][0]
    step = stack.pool.steps["t1"][1]
    assert step.parent == 0 and step.fork_reason == ""
    text = tokenizer().decode(unpack_ids(step.prompt_ids).tolist(), skip_special_tokens=False)
    assert text == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
