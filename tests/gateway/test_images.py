"""Images in conversations: three dialects, exact ids, bounds; the engine is a fake one that expands placeholders."""

import base64
import hashlib
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from conftest import Stack, running
from fakes import FakePool
from test_fidelity import contexts
from vision import CONTEXT, TEMPLATE, build_vision, data_url, picture, shown, words

from rlctl.errors import ConfigError
from rlctl.gateway.text.template import ChatTemplate
from rlctl.train.data.samples import BadSteps, build
from rlctl.wire.arrays import unpack_ids
from rlctl.wire.samples import Step

RED, BLUE = picture("red"), picture("blue")
PLACEHOLDER = words().token_to_id("<image>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    build_vision(folder)
    return folder


@pytest.fixture
async def stack(tmp_path: Path, model: Path) -> AsyncIterator[Stack]:
    async with running(tmp_path, model=model, context=CONTEXT, max_images=3, max_image_pixels=100_000) as made:
        made.engine.image = (PLACEHOLDER, shown())
        yield made


def part(content: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(content, media_type)}}


def asked(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def name(content: bytes, kind: str = "png") -> str:
    return f"{hashlib.sha256(content).hexdigest()}.{kind}"


def steps_of(pool: FakePool, uid: str) -> list[Step]:
    return [step for _, step in sorted(pool.steps[uid].items())]


def check(stack: Stack, uid: str, images: list[list[bytes]]) -> list[Step]:
    """Every Step extends the one before, its context is what the engine computed with, its images are on disk."""
    steps = steps_of(stack.pool, uid)
    assert [step.parent for step in steps] == [i - 1 for i in range(len(steps))]
    seen = contexts(stack.pool.steps[uid])
    for step, call, own in zip(steps, stack.engine.calls, images, strict=True):
        assert seen[step.step_index] == call["prompt"]
        assert step.images == [name(one) for one in own]
        assert [(stack.run_dir / "images" / one).read_bytes() for one in step.images] == own
    return steps


async def test_a_conversation_with_images_extends_the_ids_that_the_engine_computed_with(stack: Stack) -> None:
    stack.engine.script = ["a red one", "a blue one", "no"]
    talk = [asked("What is ", part(RED), "?")]
    for turn in ([asked("And this?", part(BLUE))], [{"role": "user", "content": "Sure?"}], []):
        body = await stack.client.chat("t", talk)
        talk += [body["choices"][0]["message"], *turn]
    steps = check(stack, "t", [[RED], [BLUE], []])
    text = "<|im_start|>user\nWhat is <image>?<|im_end|>\n<|im_start|>assistant\n"
    head, tail = (words().encode(half).ids for half in text.split("<image>"))
    assert unpack_ids(steps[0].prompt_ids).tolist() == [*head, *shown(), *tail]
    sent = stack.engine.calls[1]["asked"]
    assert [base64.b64decode(one) for one in sent["images"]] == [RED, BLUE]
    assert body["usage"]["prompt_tokens"] == len(stack.engine.calls[2]["prompt"])


async def test_official_clients_send_images_streaming_and_not(stack: Stack) -> None:
    stack.engine.script = ["one"] * 6
    base = f"{stack.client.url}/t/p"
    message = asked("What is", part(RED))
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(model="m", messages=[message])
        talk = [message, {"role": "assistant", "content": whole.choices[0].message.content}, asked(part(BLUE))]
        stream = await client.chat.completions.create(model="m", messages=talk, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "one"
    check(stack, "t", [[RED], [BLUE]])
    async with openai.AsyncOpenAI(base_url=f"{stack.client.url}/r/p/v1", api_key="none") as client:
        item = {"role": "user", "content": [{"type": "input_text", "text": "What is"},
                                            {"type": "input_image", "image_url": data_url(RED)}]}  # fmt: skip
        first = await client.responses.create(model="m", input=[item])
        item = {"role": "user", "content": [{"type": "input_image", "image_url": data_url(BLUE), "detail": "auto"}]}
        await client.responses.create(model="m", input=[item], previous_response_id=first.id)
    async with anthropic.AsyncAnthropic(base_url=f"{stack.client.url}/a/p", api_key="none") as claude:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
        turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is"},
                                                         {"type": "image", "source": source}]}]  # fmt: skip
        reply = await claude.messages.create(model="m", max_tokens=9, messages=turns)
        turns += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "Sure?"}]
        async with claude.messages.stream(model="m", max_tokens=9, messages=turns) as events:
            assert (await events.get_final_message()).content[0].text == "one"
    for uid, own in (("r", [[RED], [BLUE]]), ("a", [[RED], []])):
        steps = steps_of(stack.pool, uid)
        assert [step.images for step in steps] == [[name(one) for one in images] for images in own]
        assert [step.parent for step in steps] == [-1, 0]
        assert steps[0].prompt_ids == steps_of(stack.pool, "t")[0].prompt_ids  # the same words in every dialect


async def test_another_image_in_the_history_is_another_history(stack: Stack) -> None:
    stack.engine.script = ["one", "two"]
    first = await stack.client.chat("t", [asked("see", part(RED))])
    await stack.client.chat("t", [asked("see", part(BLUE)), first["choices"][0]["message"], asked("again")])
    steps = steps_of(stack.pool, "t")
    assert [step.parent for step in steps] == [-1, -1] and steps[1].fork_reason == "rewritten_history"
    assert steps[1].images == [name(BLUE)]


async def test_an_image_token_that_the_model_wrote_itself_is_not_taken_for_a_new_image(stack: Stack) -> None:
    stack.engine.script = ["look"]
    stack.engine._sample = lambda most: ([PLACEHOLDER, 5], "stop")  # type: ignore[method-assign]
    first = await stack.client.chat("t", [asked("see", part(RED))])
    talk = [asked("see", part(RED)), first["choices"][0]["message"]]
    status, body = await stack.client.post("/t/p1/v1/chat/completions", {"messages": [*talk, asked(part(BLUE))]})
    assert (status, body["error"]["code"]) == (400, "image_token")
    await stack.client.chat("t", [*talk, {"role": "user", "content": "without"}])
    assert [step.parent for step in steps_of(stack.pool, "t")] == [-1, 0]


async def test_a_prompt_that_is_too_long_with_its_images_is_refused_and_leaves_no_step(stack: Stack) -> None:
    stack.engine.image = (PLACEHOLDER, [PLACEHOLDER] * (CONTEXT - 10))
    status, body = await stack.client.post("/t/p1/v1/chat/completions", {"messages": [asked(part(RED))]})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert not stack.pool.steps["t"]


async def test_an_image_that_cannot_be_written_is_a_500_that_names_the_folder_and_leaves_no_step(stack: Stack) -> None:
    folder = stack.run_dir / "images"
    folder.write_text("in the way")
    status, body = await stack.client.post("/t/p1/v1/chat/completions", {"messages": [asked(part(RED))]})
    assert (status, body["error"]["code"]) == (500, "image_not_kept")
    assert f"images of a run stay in {folder}" in body["error"]["message"]
    assert not stack.engine.calls and not stack.pool.steps["t"]
    folder.unlink()
    stack.engine.script = ["red"]
    await stack.client.chat("t", [asked("see", part(RED))])
    check(stack, "t", [[RED]])
    assert [path.name for path in folder.iterdir()] == [name(RED)], "no draft is left"


async def test_an_image_that_comes_with_every_turn_is_one_file(stack: Stack) -> None:
    stack.engine.script = ["one"] * 4
    for uid in ("t", "u"):
        first = await stack.client.chat(uid, [asked("see", part(RED))])
        written = (stack.run_dir / "images" / name(RED)).stat().st_mtime_ns
        await stack.client.chat(uid, [asked("see", part(RED)), first["choices"][0]["message"], asked("again")])
    assert [path.name for path in (stack.run_dir / "images").iterdir()] == [name(RED)]
    assert (stack.run_dir / "images" / name(RED)).stat().st_mtime_ns == written


async def test_an_engine_that_would_ignore_images_is_found_out(stack: Stack) -> None:
    stack.engine.image = None
    status, body = await stack.client.post("/t/p1/v1/chat/completions", {"messages": [asked(part(RED))]})
    assert status == 400 and "takes no images" in body["error"]["message"]
    assert not stack.pool.steps["t"]


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels in less than 100 bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def url(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": text, **more}}


HOSTILE = [
    ([url("https://example.com/a.png")], "nothing is fetched"),
    ([url("file:///etc/passwd")], "nothing is fetched"),
    ([url(7)], "must be a data: URL"),
    ([{"type": "image_url"}], "must be a data: URL"),
    ([url("data:image/png;base64,####")], "not base64"),
    ([url("data:image/svg+xml;base64,AAAA")], "media type"),
    ([part(b"no picture")], "not what its media type"),
    ([part(RED, "image/jpeg")], "not what its media type"),
    ([part(RED[: len(RED) // 2])], "cannot be decoded"),
    ([part(bomb())], "gateway.max_image_pixels"),
    ([part(picture("red", (400, 300)))], "gateway.max_image_pixels"),
    ([part(RED)] * 4, "gateway.max_images"),
    ([url(data_url(RED), detail="high")], "detail"),
    ([{"type": "video_url", "video_url": {"url": "data:"}}], "text and images"),
]


@pytest.mark.parametrize(("parts", "why"), HOSTILE)
async def test_a_bad_image_is_a_400_that_says_why(stack: Stack, parts: list[Any], why: str) -> None:
    status, body = await stack.client.post("/t/p1/v1/chat/completions", {"messages": [asked(*parts)]})
    assert status == 400 and why in body["error"]["message"]
    assert not stack.engine.calls and not list(stack.run_dir.glob("images/*.*"))


async def test_images_stand_in_the_users_messages_only(stack: Stack) -> None:
    for role in ("system", "assistant"):
        message = {"role": role, "content": [part(RED)]}
        body = {"messages": [message, {"role": "user", "content": "?"}]}
        assert (await stack.client.post("/t/p1/v1/chat/completions", body))[0] == 400


async def test_a_model_of_text_refuses_images(tmp_path: Path) -> None:
    async with running(tmp_path) as text:
        status, body = await text.client.post("/t/p1/v1/chat/completions", {"messages": [asked(part(RED))]})
        assert status == 400 and "this model takes text" in body["error"]["message"]


def test_the_trainer_says_that_it_does_not_compute_with_pixels() -> None:
    step = Step("t", 0, b"\0" * 4, b"", b"", [], images=["a.png"])
    with pytest.raises(BadSteps, match="1 images, and the trainer computes with token ids only"):
        build("t", [step])


def test_a_template_that_leaves_out_strings_gets_parts() -> None:
    picky = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}|{% endfor %}"
    assert ChatTemplate(picky, {}).render([{"role": "user", "content": "hello"}]) == "hello|"
    assert "hello" in ChatTemplate(TEMPLATE, {}).render([{"role": "user", "content": "hello"}])


def test_image_bounds_are_positive() -> None:
    from pydantic import ValidationError

    from rlctl.config.serving import Gateway

    for key in ("max_images", "max_image_pixels"):
        with pytest.raises((ValidationError, ConfigError)):
            Gateway(**{key: 0})
