"""rlctl's face on vLLM, over a small application and engine client that behave as vLLM's do. No vLLM needed."""

import asyncio
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rlctl.engines.vllm import face as vllm_face
from rlctl.engines.vllm import weights
from rlctl.engines.vllm.face import Face
from rlctl.engines.vllm.policy import Policy
from rlctl.engines.vllm.settings import ENVIRONMENT, FaceSettings
from rlctl.engines.vllm.versions import Told, header, tokens
from rlctl.wire.published import Base, announce, sha256, write_base


def span(version: str, start: int, end: int) -> Any:
    return SimpleNamespace(version=version, start=start, end=end)


class Engine:
    """An engine client that makes one token per turn of the event loop, labelled as vLLM labels them."""

    def __init__(self) -> None:
        self.version, self.did = "default", list[str]()
        self.going = asyncio.Event()
        self.going.set()
        self.fail = False

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.did.append(f"pause {mode} {clear_cache}")
        self.going.clear()

    async def resume_generation(self) -> None:
        self.did.append("resume")
        self.going.set()

    async def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> None:
        assert not self.going.is_set()
        self.did.append(f"{method} {Path(args[0]).name}")
        if self.fail:
            raise RuntimeError("half a model")

    async def update_weight_version(self, new_version: str) -> None:
        self.did.append(f"version {new_version}")
        self.version = new_version

    async def generate(self, count: int, n: int) -> AsyncIterator[Any]:
        runs: list[Any] = []
        for at in range(count):
            await self.going.wait()
            if not runs or runs[-1].version != self.version:
                runs.append(span(self.version, at, at))
            runs[-1].end = at + 1
            done = at + 1 == count
            choices = [SimpleNamespace(index=i, weight_versions=runs if done else None) for i in range(n)]
            yield SimpleNamespace(outputs=choices)
            await asyncio.sleep(0.001)


class Application:
    """vLLM's API server, as far as the face can see it."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(engine_client=Engine())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        order = json.loads((await receive()).get("body") or b"{}")
        if scope["path"] == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"fine"})
        elif order["count"] > 1000:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"too long"})
        else:
            await self.answer(order, send)

    async def answer(self, order: dict[str, Any], send: Any) -> None:
        kind = b"text/event-stream; charset=utf-8" if order.get("stream") else b"application/json"
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        if order.get("stream"):
            await send(start)
        async for _ in self.state.engine_client.generate(order["count"], order.get("n", 1)):
            if order.get("stream"):
                await send(
                    {"type": "http.response.body", "body": b'data: {"id": "a", "choices": [{}]}\n\n', "more_body": True}
                )
        if order.get("stream"):
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            await send(start)
            await send({"type": "http.response.body", "body": b"{}"})


class Running:
    """A face over an application, after its start-up."""

    def __init__(self, face: Face, application: Application) -> None:
        self.face, self.application, self.engine = face, application, application.state.engine_client

    async def request(
        self, method: str, path: str, body: Any = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, bytes, dict[str, str]]:
        sent: list[Any] = []
        data = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "app": self.application, "headers": headers}
        await self.face(scope, receive, send)
        got = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), got

    async def put(self, version: Any, path: Any) -> tuple[int, dict[str, Any]]:
        status, body, _ = await self.request("PUT", "/policy", {"version": version, "path": str(path)})
        return status, json.loads(body)


def write_model(folder: Path, shape: tuple[int, ...] = (2, 3), name: str = "w", version: int = 1) -> str:
    """A safetensors file with one float32 tensor, and its PUBLISHED.json; returns the checksum."""
    folder.mkdir()
    size = 4
    for side in shape:
        size *= side
    head = json.dumps({name: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}}).encode()
    content = struct.pack("<Q", len(head)) + head + bytes(size)
    (folder / "model.safetensors").write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    promise = {"version": version, "sha256": {"model.safetensors": checksum}}
    (folder / "PUBLISHED.json").write_text(json.dumps(promise))
    return checksum


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    write_model(tmp_path / "v0")
    settings = FaceSettings("", "engine-0", "http://127.0.0.1:1", str(tmp_path / "v0"))
    monkeypatch.setenv(ENVIRONMENT, settings.to_json())

    class Nowhere:
        def __init__(self, *_: Any) -> None: ...
        async def run(self) -> None: ...

    monkeypatch.setattr(vllm_face, "Presence", Nowhere)
    monkeypatch.setattr(vllm_face.logs, "setup", lambda name: None)
    application, started, ended = Application(), asyncio.Event(), asyncio.Event()
    face = Face(application)
    messages = iter((asyncio.sleep(0), ended.wait()))

    async def receive() -> Any:
        await next(messages)
        return {}

    async def send(message: Any) -> None:
        started.set()

    life = asyncio.create_task(face({"type": "lifespan", "app": application}, receive, send))
    begun = asyncio.create_task(started.wait())
    await asyncio.wait({life, begun}, return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        life.result()  # why it has ended
    yield Running(face, application)
    ended.set()
    await life


async def test_the_weights_that_vllm_came_up_with_are_version_0(running: Running, tmp_path: Path) -> None:
    status, body, _ = await running.request("GET", "/policy")
    checksum = sha256(tmp_path / "v0" / "model.safetensors")
    assert (status, json.loads(body)) == (200, {"version": 0, "checksum": checksum, "path": str(tmp_path / "v0")})
    assert running.engine.version == "0"


async def test_an_update_pauses_loads_labels_and_resumes_in_this_order(running: Running, tmp_path: Path) -> None:
    checksum = write_model(tmp_path / "v7", version=7)
    status, answer = await running.put(7, tmp_path / "v7")
    assert (status, answer["version"], answer["checksum"]) == (200, 7, checksum)
    assert running.engine.did[1:] == ["pause keep True", "load_published v7", "version 7", "resume"]
    _, body, _ = await running.request("GET", "/policy")
    assert json.loads(body)["version"] == 7


async def test_a_response_says_which_tokens_came_from_which_version(running: Running, tmp_path: Path) -> None:
    write_model(tmp_path / "v1")
    call = asyncio.create_task(running.request("POST", "/v1/completions", {"count": 60, "n": 2}))
    await asyncio.sleep(0.03)
    await running.put(1, tmp_path / "v1")
    _, _, headers = await call
    first, second = headers["x-policy-versions"].split(";")
    (old, before), (new, after) = (map(int, run.split(":")) for run in first.split(","))
    assert first == second and (old, new, before + after) == (0, 1, 60) and before > 0 and after > 0


async def test_concurrent_requests_do_not_mix_their_versions(running: Running, tmp_path: Path) -> None:
    counts = range(1, 30)
    calls = [running.request("POST", "/v1/completions", {"count": count}) for count in counts]
    answers = await asyncio.gather(*calls)
    assert [headers["x-policy-versions"] for _, _, headers in answers] == [f"0:{count}" for count in counts]
    tally = running.face.tally
    assert (tally.requests, tally.failed, tally.running, tally.tokens) == (29, 0, 0, sum(counts))


async def test_a_stream_carries_the_versions_just_before_it_is_done(running: Running) -> None:
    _, body, headers = await running.request("POST", "/v1/completions", {"count": 3, "stream": True})
    *chunks, tail, done = body.split(b"\n\n")[:-1]
    assert chunks == [b'data: {"id": "a", "choices": [{}]}'] * 3
    assert json.loads(tail.removeprefix(b"data: ")) == {"id": "a", "choices": [], "policy_versions": "0:3"}
    assert done == b"data: [DONE]"
    assert "x-policy-versions" not in headers


async def test_other_requests_and_errors_pass_untouched(running: Running) -> None:
    assert (await running.request("GET", "/health"))[1] == b"fine"
    status, body, headers = await running.request("POST", "/v1/completions", {"count": 1001})
    assert (status, body, headers) == (400, b"too long", {})
    assert running.face.tally.failed == 1


async def test_a_wrong_checksum_is_refused_before_anything_stops(running: Running, tmp_path: Path) -> None:
    write_model(tmp_path / "v1")
    file = tmp_path / "v1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    status, answer = await running.put(1, tmp_path / "v1")
    assert status == 422 and "was promised" in answer["error"]["message"]
    assert running.engine.did == ["version 0"]


async def test_an_older_version_and_a_mislabelled_one_are_refused(running: Running, tmp_path: Path) -> None:
    write_model(tmp_path / "v2", version=2)
    assert (await running.put(2, tmp_path / "v2"))[0] == 200
    write_model(tmp_path / "v1")
    status, answer = await running.put(1, tmp_path / "v1")
    assert (status, answer["error"]["message"]) == (409, "version 2 is served; 1 is older")
    status, answer = await running.put(3, tmp_path / "v2")
    assert status == 422 and "published as version 2, not 3" in answer["error"]["message"]
    # The same number again, with other weights, is what a warm start does.
    write_model(tmp_path / "again", version=2)
    assert (await running.put(2, tmp_path / "again"))[0] == 200


@pytest.mark.parametrize("model", [{"shape": (3, 2)}, {"name": "other"}])
async def test_weights_of_another_model_are_refused(running: Running, tmp_path: Path, model: dict[str, Any]) -> None:
    write_model(tmp_path / "v1", **model)
    status, answer = await running.put(1, tmp_path / "v1")
    assert status == 422 and "the model served has (2, 3)" in answer["error"]["message"]
    assert running.engine.did == ["version 0"]


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ({"A": (1, 3), "B": (2, 1)}, ""),
        ({"A": (1, 2), "B": (2, 1)}, "is for a weight (2, 2), the base has (2, 3)"),
        ({"A": (1, 3)}, "has no "),
    ],
)
async def test_adapters_are_held_against_their_base_before_anything_stops(
    running: Running, tmp_path: Path, sides: dict[str, tuple[int, int]], words: str
) -> None:
    checksum = write_model(tmp_path / "base", name="layer.weight")
    running.face.policy._shapes = {"layer.weight": (2, 3)}  # type: ignore[union-attr]
    folder = tmp_path / "v1"
    folder.mkdir()
    pairs = {f"base_model.model.layer.lora_{side}.weight": torch.ones(shape) for side, shape in sides.items()}
    save_file(pairs, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    write_base(folder, Base(str(tmp_path / "base"), {"model.safetensors": checksum}, "float32"))
    mine = announce(folder, 1, ["adapter_model.safetensors", "adapter_config.json", "base.json"])
    status, answer = await running.put(1, folder)
    if not words:
        assert (status, answer["checksum"]) == (200, mine)
        return
    assert status == 422 and words in answer["error"]["message"]
    assert running.engine.did == ["version 0"]


async def test_a_folder_that_was_never_published_is_refused(running: Running, tmp_path: Path) -> None:
    status, answer = await running.put(1, tmp_path / "nothing")
    assert status == 422 and "no published folder" in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"version": 1}', b'{"version": -1, "path": "/a"}',
                                  b'{"version": true, "path": "/a"}', b'{"version": 1, "path": "a"}'])  # fmt: skip
async def test_a_malformed_order_is_a_400(running: Running, body: bytes) -> None:
    status, answer, _ = await running.request("PUT", "/policy", body)
    assert status == 400 and b"error" in answer


async def test_an_engine_with_half_loaded_weights_ends(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(vllm_face.os, "kill", lambda pid, signum: killed.append(signum))
    write_model(tmp_path / "v1")
    running.engine.fail = True
    status, answer = await running.put(1, tmp_path / "v1")
    assert status == 500 and "half a model" in answer["error"]["message"]
    assert running.engine.did[-1] == "load_published v1", "never resumed"
    await asyncio.sleep(0.3)
    assert killed == [vllm_face.signal.SIGTERM]
    running.engine.fail = False
    assert (await running.put(1, tmp_path / "v1"))[0] == 500


async def test_updates_that_come_together_are_made_one_after_the_other(running: Running, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        write_model(tmp_path / f"v{version}", version=version)
    answers = await asyncio.gather(*(running.put(version, tmp_path / f"v{version}") for version in (1, 2, 3)))
    assert [status for status, _ in answers] == [200] * 3
    did = running.engine.did[1:]
    assert len(did) == 12
    for begin in range(0, 12, 4):
        version = did[begin + 2].removeprefix("version ")
        assert did[begin : begin + 4] == [
            "pause keep True", f"load_published v{version}", f"version {version}", "resume",
        ]  # fmt: skip


async def test_a_start_from_the_hub_takes_the_first_publication_as_its_shape(tmp_path: Path) -> None:
    policy = Policy(Engine(), "")
    await policy.start()
    assert policy.state() == {"version": 0, "checksum": "", "path": ""}
    write_model(tmp_path / "v1")
    write_model(tmp_path / "v2", shape=(9, 9), version=2)
    await policy.put(1, str(tmp_path / "v1"))
    with pytest.raises(weights.Refused):
        await policy.put(2, str(tmp_path / "v2"))


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)), max_size=4), min_size=1, max_size=4))
def test_the_header_holds_every_token_once(choices: list[list[tuple[int, int]]]) -> None:
    told: Told = [{}]
    for index, runs in enumerate(choices):
        ends = [sum(count for _, count in runs[: i + 1]) for i in range(len(runs))]
        told[0][index] = [
            span(str(version), end - count, end) for (version, count), end in zip(runs, ends, strict=True)
        ]
    parts = [part.split(",") if part else [] for part in header(told).split(";")]
    assert [[tuple(map(int, run.split(":"))) for run in part] for part in parts] == choices
    assert tokens(told) == sum(count for runs in choices for _, count in runs)


async def test_images_for_a_vllm_that_cannot_be_given_any_are_an_error_not_left_out(running: Running) -> None:
    status, body, _ = await running.request("POST", "/v1/completions", {"count": 1}, [(b"x-rlctl-images", b"1")])
    assert status == 501 and b"takes images beside token ids" in body
