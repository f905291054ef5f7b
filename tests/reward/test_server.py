"""The real reward process between a real pool and HTTP clients."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import rlctl
from rlctl.telemetry.metrics import read
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.frames import read_ended
from rlctl.wire.messages import (
    CompleteTrajectory,
    FetchBatch,
    OpenGroup,
    SubmitSteps,
)
from rlctl.wire.samples import Facts, Step
from rlctl.wire.sockets import Ask
from tests.pool.process import PoolProcess

PRESET = """
[model]
init = "tiny"
[reward.right]
fn = "numeric"
[reward.form]
fn = "format"
weight = -0.25
"""
WORDS = {"<eos>": 0, "the": 1, "answer": 2, "is": 3, "4": 4, "5": 5}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolProcess]:
    process = PoolProcess(tmp_path).start()
    yield process
    process.stop()


@pytest.fixture
def reward(pool: PoolProcess, tmp_path: Path) -> Iterator[str]:
    """Address of the reward service."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "reward.toml").write_text(PRESET)
    argv = [sys.executable, "-m", "rlctl", "reward", "--config", str(tmp_path / "reward.toml")]
    argv += ["-s", f"run.dir={tmp_path}", "-s", f"pool.port={pool.port}"]
    environment = {**os.environ, "PYTHONPATH": str(Path(rlctl.__file__).parents[1])}
    process = subprocess.Popen(argv, env=environment)
    announced = tmp_path / "components" / "reward.json"
    deadline = time.monotonic() + 60
    while not announced.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    yield json.loads(announced.read_text())["url"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


def answered(uid: str, text: str) -> Step:
    ids = [WORDS[word] for word in text.split()]
    return Step(uid, 0, pack_ids([1]), pack_ids(ids), pack_floats([-1.0] * len(ids)), [(0, len(ids))])


async def test_trajectories_are_decoded_scored_and_handed_on(pool: PoolProcess, reward: str, tmp_path: Path) -> None:
    ask = Ask(pool.url)
    uids = ["p.0", "p.1", "p.2"]
    await ask.ask(OpenGroup("p", uids, task={"ground_truth": "4"}))
    texts = ["the answer is 4 <eos>", "the answer is 5 <eos>", "4"]
    await ask.ask(SubmitSteps([answered(uid, text) for uid, text in zip(uids, texts, strict=True)]))
    for number, uid in enumerate(uids):
        await ask.ask(CompleteTrajectory(uid, 1, facts=Facts(format_errors=number)))
    batch = await ask.ask(FetchBatch(1, wait_s=20))
    ask.close()
    (group,) = batch.groups
    assert [t.reward for t in group.trajectories] == [1.0, -0.25, 0.5]
    assert group.trajectories[2].reward_parts == {"right": 1.0, "form": 2.0}


async def test_a_sample_that_cannot_be_scored_fails_and_the_rest_goes_on(
    pool: PoolProcess, reward: str, tmp_path: Path
) -> None:
    ask = Ask(pool.url)
    for uid, task in (("bad", {}), ("good", {"ground_truth": "4"})):
        await ask.ask(OpenGroup(uid, [uid], task=task))
        await ask.ask(SubmitSteps([answered(uid, "4")]))
        await ask.ask(CompleteTrajectory(uid, 1))
    batch = await ask.ask(FetchBatch(1, wait_s=20))
    assert [t.uid for g in batch.groups for t in g.trajectories] == ["good"]
    ask.close()
    pool.stop()
    ((_, ended),) = read_ended(tmp_path / "trajectories")
    assert (ended.trajectory.uid, ended.outcome) == ("bad", "failed")
    assert "task has no 'ground_truth'" in ended.trajectory.facts.error


async def test_score_over_http_in_order_with_clear_errors(reward: str) -> None:
    samples = [
        {"responses": ["so it is 4"], "task": {"ground_truth": "4"}},
        {"responses": ["no"], "task": {"ground_truth": "4"}, "facts": {"format_errors": 2}},
        {"responses": ["4"]},
    ]
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{reward}/score", json={"samples": samples}) as response:
            scores = (await response.json())["scores"]
        assert [one["reward"] for one in scores] == [1.0, -0.5, 0.0]
        assert scores[0]["parts"] == {"right": 1.0, "form": 0.0}
        assert "task has no 'ground_truth'" in scores[2]["error"]
        for body in (b"{", b'{"samples": 3}', b"{}"):
            async with session.post(f"{reward}/score", data=body) as response:
                assert response.status == 400
                assert "not a score request" in (await response.json())["error"]
        async with session.get(f"{reward}/health") as response:
            assert await response.json() == {"status": "ok", "parts": ["right", "form"], "sandbox": []}


def test_a_model_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    from rlctl.errors import RlctlError
    from rlctl.reward.text import load_decoder

    with pytest.raises(RlctlError, match=r"has no tokenizer\.json"):
        load_decoder(str(tmp_path))


def test_metrics_say_what_was_scored(pool: PoolProcess, reward: str, tmp_path: Path) -> None:
    deadline = time.monotonic() + 10
    while not (rows := list(read(tmp_path / "metrics" / "reward.jsonl"))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert rows[-1]["scored"] == 0
    assert rows[-1]["errors"] == {}
