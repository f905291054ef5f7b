"""The embedded engine's HTTP face: a real server on a free port, a real client, transformers as the judge."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from tokenizers import Tokenizer

from rlctl.config import load
from rlctl.config.learning import Tiny
from rlctl.engines.embedded.app import App
from rlctl.engines.embedded.build import build
from rlctl.engines.embedded.measure import Measure
from rlctl.engines.embedded.server import listen, listen_and_serve
from rlctl.engines.embedded.serving import Serving
from rlctl.models.load import load_policy, load_tokenizer
from rlctl.models.tiny import build_tiny
from tests.engines.adapters import publish_adapters
from tests.engines.models import publish, reference, sequence

CONTEXT = 128
SHAPE = Tiny(layers=1, hidden_size=32, heads=1, mlp=48)


class Engine:
    """Client of the engine under test."""

    def __init__(self, http: aiohttp.ClientSession, url: str, serving: Serving, folder: Path) -> None:
        self.http, self.url, self.serving, self.folder = http, url, serving, folder

    async def post(self, session: str = "", **body: Any) -> tuple[int, dict[str, Any], str]:
        headers = {"X-Session-Id": session} if session else {}
        async with self.http.post(f"{self.url}/v1/completions", json=body, headers=headers) as reply:
            return reply.status, json.loads(await reply.read()), reply.headers.get("X-Policy-Versions", "")

    async def complete(self, prompt: list[int] | str, session: str = "", **body: Any) -> dict[str, Any]:
        status, answer, _ = await self.post(session, prompt=prompt, **body)
        assert status == 200, answer
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    async def put_policy(self, version: int, path: Path) -> tuple[int, dict[str, Any]]:
        async with self.http.put(f"{self.url}/policy", json={"version": version, "path": str(path)}) as reply:
            return reply.status, json.loads(await reply.read())

    async def get(self, path: str) -> str:
        async with self.http.get(f"{self.url}{path}") as reply:
            assert reply.status == 200
            return await reply.text()

    async def until(self, **expected: int) -> None:
        """Wait until the engine's numbers are as expected."""
        while any(Measure(self.serving.generator).values()[n] != v for n, v in expected.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "model"
    build_tiny(path, SHAPE, CONTEXT, seed=1)
    return path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    config = load([], [f"model.path='{folder}'", f"model.max_context={CONTEXT}", "rollout.max_tokens=8"], {}).config
    generator, texts = build(config, load_tokenizer(str(folder)), seed=0)
    serving = Serving(generator)
    listening = listen(config, 0)
    app = App(serving, texts, Measure(generator), "tiny")
    tasks = [asyncio.create_task(main) for main in (serving.run(), listen_and_serve(app, listening))]
    async with aiohttp.ClientSession() as http:
        yield Engine(http, f"http://127.0.0.1:{listening.getsockname()[1]}", serving, folder)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def exact(model: Any, prompt: list[int], choice: dict[str, Any], temperature: float = 1.0) -> float:
    """Largest difference between the reply's logprobs and transformers'."""
    one = sequence(prompt)
    one.response = choice["token_ids"]
    return float(np.abs(reference(model, one, temperature) - choice["logprobs"]["token_logprobs"]).max())


async def test_logprobs_over_a_multi_turn_session_are_exact_and_the_cache_is_used(engine: Engine) -> None:
    model = load_policy(str(engine.folder))
    prompt = [1, 2, 3]
    for _ in range(4):
        choice = await engine.complete(prompt, "s", max_tokens=6, temperature=0.8, logprobs=0, return_token_ids=True)
        assert exact(model, prompt, choice, 0.8) < 1e-4
        prompt = [*prompt, *choice["token_ids"], 7, 8]
    assert engine.serving.generator.counts["reused_tokens"] > 30


async def test_a_reply_has_vllms_form_and_names_the_version_of_every_token(engine: Engine) -> None:
    status, answer, versions = await engine.post(prompt=[1, 2], max_tokens=5, ignore_eos=True, n=2, model="m")
    assert status == 200
    assert (answer["object"], answer["model"], versions) == ("text_completion", "m", "0:5;0:5")
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert {c["finish_reason"] for c in answer["choices"]} == {"length"}
    assert answer["usage"] | {"prompt_tokens_details": 0} == {
        "prompt_tokens": 2,
        "completion_tokens": 10,
        "total_tokens": 12,
        "prompt_tokens_details": 0,
    }


async def test_the_end_of_turn_token_ends_the_response_and_is_part_of_it(engine: Engine) -> None:
    end = Tokenizer.from_file(str(engine.folder / "tokenizer.json")).token_to_id("<|im_end|>")
    for seed in range(200):
        choice = await engine.complete([5], max_tokens=60, seed=seed)
        if choice["finish_reason"] == "stop":
            break
    assert choice["token_ids"][-1] == end
    assert end not in choice["token_ids"][:-1]
    ignored = await engine.complete([5], max_tokens=60, seed=seed, ignore_eos=True)
    assert ignored["token_ids"][: len(choice["token_ids"])] == choice["token_ids"]
    assert len(ignored["token_ids"]) == 60


async def test_a_stop_text_is_cut_from_the_text_and_its_tokens_stay(engine: Engine) -> None:
    plain = await engine.complete("Up Down", max_tokens=20, seed=3, ignore_eos=True)
    letter = next(c for c in plain["text"] if c.isascii() and c.isprintable())
    stopped = await engine.complete("Up Down", max_tokens=20, seed=3, ignore_eos=True, stop=[letter])
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == plain["text"][: plain["text"].index(letter)]
    assert stopped["token_ids"] == plain["token_ids"][: len(stopped["token_ids"])]


async def test_a_seed_reproduces_the_response(engine: Engine) -> None:
    one, again, other = await asyncio.gather(
        *(engine.complete([1], max_tokens=30, seed=seed, ignore_eos=True) for seed in (4, 4, 5))
    )
    assert one["token_ids"] == again["token_ids"] != other["token_ids"]


async def test_too_long_is_a_400_that_names_the_numbers(engine: Engine) -> None:
    status, answer, _ = await engine.post(prompt=[1] * 100, max_tokens=29)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert all(number in answer["error"]["message"] for number in ("128", "100", "29", "129"))
    assert (await engine.post(prompt=[1] * 100, max_tokens=28))[0] == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": [1], "best_of": 3}, "best_of"),
        ({"prompt": []}, "empty"),
        ({"prompt": [1, 100000]}, "100000"),
        ({"prompt": [-1]}, "-1"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "temperature": -1}, "temperature"),
        ({"prompt": [1], "top_p": 0}, "top_p"),
        ({"prompt": [1], "logprobs": 5}, "logprobs"),
        ({"prompt": [1], "n": 0}, "n must be"),
        ({"prompt": [1], "stop": ""}, "stop"),
        ({"prompt": ["a"]}, "int"),
        ({"max_tokens": 3}, "prompt"),
    ],
)
async def test_a_bad_request_is_a_400_that_names_the_field(engine: Engine, body: dict[str, Any], named: str) -> None:
    status, answer, _ = await engine.post(**body)
    assert status == 400
    assert named in answer["error"]["message"]


async def test_unknown_paths_and_methods_are_404_and_405(engine: Engine) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("DELETE", "/policy", 405)):
        async with engine.http.request(method, engine.url + path) as reply:
            assert reply.status == status
            assert "error" in await reply.json()


async def test_new_weights_take_over_in_the_middle_of_a_request(engine: Engine, tmp_path: Path) -> None:
    build_tiny(tmp_path / "other", SHAPE, CONTEXT, seed=2)
    before, after = load_policy(str(engine.folder)), load_policy(str(tmp_path / "other"))
    checksum = publish(after, tmp_path / "v1", 1)
    prompts = [[1, 2, i] for i in range(6)]
    calls = [
        asyncio.create_task(engine.post(f"s{i}", prompt=prompt, max_tokens=120, ignore_eos=True))
        for i, prompt in enumerate(prompts)
    ]
    while engine.serving.generator.counts["generated_tokens"] < 60:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    status, told = await engine.put_policy(1, tmp_path / "v1")
    assert (status, told["version"], told["checksum"]) == (200, 1, checksum)
    replies = await asyncio.gather(*calls)
    for prompt, (_, answer, header) in zip(prompts, replies, strict=True):
        (zero, old), (one, new) = (map(int, run.split(":")) for run in header.split(","))
        assert (zero, one, old + new) == (0, 1, 120)
        choice = answer["choices"][0]
        logprobs = np.array(choice["logprobs"]["token_logprobs"])
        whole = sequence(prompt)
        whole.response = choice["token_ids"]
        assert np.abs(reference(before, whole)[:old] - logprobs[:old]).max() < 1e-4
        assert np.abs(reference(after, whole)[old:] - logprobs[old:]).max() < 1e-4
        assert np.abs(reference(before, whole)[old:] - logprobs[old:]).max() > 1e-3
    assert json.loads(await engine.get("/policy")) == {"version": 1, "checksum": checksum, "path": str(tmp_path / "v1")}


async def test_weights_that_are_not_as_announced_are_refused(engine: Engine, tmp_path: Path) -> None:
    model = load_policy(str(engine.folder))
    publish(model, tmp_path / "good", 3)
    publish(model, tmp_path / "torn", 3)
    data = bytearray((tmp_path / "torn" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "torn" / "model.safetensors").write_bytes(data)
    build_tiny(tmp_path / "wide", Tiny(layers=1, hidden_size=64, heads=2, mlp=48), CONTEXT, seed=1)
    publish(load_policy(str(tmp_path / "wide")), tmp_path / "shape", 3)
    for version, name, why in (
        (3, "nowhere", "PUBLISHED.json"),
        (3, "torn", "sha256"),
        (4, "good", "version"),
        (3, "shape", "the model's is"),
    ):
        status, answer = await engine.put_policy(version, tmp_path / name)
        assert status == 422
        assert why in answer["error"]["message"]
    assert json.loads(await engine.get("/policy"))["version"] == 0
    assert (await engine.put_policy(3, tmp_path / "good"))[0] == 200
    assert (await engine.put_policy(3, tmp_path / "good"))[0] == 200
    publish(model, tmp_path / "older", 2)
    assert (await engine.put_policy(2, tmp_path / "older"))[0] == 409


async def test_adapters_are_served_as_the_model_that_they_make_of_their_base(engine: Engine, tmp_path: Path) -> None:
    checksum, merged = publish_adapters(engine.folder, tmp_path / "v1", 1, seed=3)
    assert (await engine.put_policy(1, tmp_path / "v1"))[1]["checksum"] == checksum
    body = {"prompt": [3, 4, 5], "max_tokens": 40, "logprobs": 0, "seed": 5, "ignore_eos": True}
    choice = await engine.complete(**body)
    told = np.array(choice["logprobs"]["token_logprobs"])
    whole = sequence([3, 4, 5])
    whole.response = choice["token_ids"]
    assert np.abs(reference(merged, whole) - told).max() < 1e-4
    assert np.abs(reference(load_policy(str(engine.folder)), whole) - told).max() > 0.1, "the base is another model"
    publish(merged, tmp_path / "v2", 2)
    assert (await engine.put_policy(2, tmp_path / "v2"))[0] == 200
    same = await engine.complete(**body)
    assert same["token_ids"] == choice["token_ids"]
    assert same["logprobs"]["token_logprobs"] == choice["logprobs"]["token_logprobs"], "to the last bit"


async def test_adapters_or_a_base_that_are_not_as_announced_are_refused(engine: Engine, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(engine.folder, base)
    for name in ("good", "torn", "settings"):
        publish_adapters(base, tmp_path / name, 1, seed=3)
    data = bytearray((tmp_path / "torn" / "adapter_model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "torn" / "adapter_model.safetensors").write_bytes(data)
    settings = (tmp_path / "settings" / "adapter_config.json").read_text()
    (tmp_path / "settings" / "adapter_config.json").write_text(settings.replace('"lora_alpha": 4', '"lora_alpha": 5'))
    for name, file in (("torn", "adapter_model.safetensors"), ("settings", "adapter_config.json")):
        status, answer = await engine.put_policy(1, tmp_path / name)
        assert status == 422
        assert f"{file}: sha256 is" in answer["error"]["message"]
    assert (await engine.put_policy(1, tmp_path / "good"))[0] == 200
    build_tiny(base, SHAPE, CONTEXT, seed=2)
    publish_adapters(engine.folder, tmp_path / "next", 2, seed=3)
    status, answer = await engine.put_policy(1, tmp_path / "good")
    assert status == 422 and "the base of the adapters is not where they say" in answer["error"]["message"]
    shutil.rmtree(base)
    status, answer = await engine.put_policy(1, tmp_path / "good")
    assert status == 422 and "cannot be read" in answer["error"]["message"]
    assert json.loads(await engine.get("/policy"))["version"] == 1
    assert (await engine.put_policy(2, tmp_path / "next"))[0] == 200


async def test_a_client_that_goes_away_frees_its_row(engine: Engine) -> None:
    call = asyncio.create_task(engine.post(prompt=[1], max_tokens=127, ignore_eos=True))
    await engine.until(running=1)
    call.cancel()
    await engine.until(running=0, aborted=1)
    assert engine.serving.generator.counts["generated_tokens"] < 127


async def test_streaming_gives_the_same_tokens_and_text_in_pieces(engine: Engine) -> None:
    whole = await engine.complete([9, 9], max_tokens=40, seed=1, ignore_eos=True)
    body = {"prompt": [9, 9], "max_tokens": 40, "seed": 1, "ignore_eos": True, "stream": True}
    chunks = []
    async with engine.http.post(f"{engine.url}/v1/completions", json=body) as reply:
        assert reply.content_type == "text/event-stream"
        async for line in reply.content:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                chunks.append(json.loads(line[6:]))
    assert line == b"\n"
    pieces = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [i for piece in pieces for i in piece["token_ids"]] == whole["token_ids"]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    logprobs = [value for piece in pieces for value in piece["logprobs"]["token_logprobs"]]
    assert logprobs == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-5)
    assert [piece["finish_reason"] for piece in pieces][-1] == "length"
    assert chunks[-1]["policy_versions"] == "0:40"


async def test_metrics_count_what_happened(engine: Engine) -> None:
    await engine.complete([1, 2, 3], max_tokens=4, ignore_eos=True)
    rows = dict(line.split() for line in (await engine.get("/metrics")).splitlines() if not line.startswith("#"))
    assert float(rows["rlctl_engine_generated_tokens_total"]) == 4
    assert float(rows["rlctl_engine_prompt_tokens_total"]) == 3
    assert float(rows["rlctl_engine_requests_total"]) == 1
    assert float(rows["rlctl_engine_decode_cpu_s_total"]) > 0
    assert json.loads(await engine.get("/v1/models"))["data"][0]["max_model_len"] == CONTEXT
    await engine.get("/health")


async def test_long_steps_leave_the_event_loop_free(engine: Engine) -> None:
    engine.serving._step_s = 1.0  # as if every step took a second
    choice = await engine.complete([1, 2, 3], max_tokens=9, ignore_eos=True)
    assert len(choice["token_ids"]) == 9
    assert exact(load_policy(str(engine.folder)), [1, 2, 3], choice) < 1e-4
