"""QLoRA: 4-bit layers under adapters, and engines that compute with what the codes stand for."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlctl.config import Config
from rlctl.config.learning import Optim
from rlctl.engines.embedded.weights import Reader
from rlctl.errors import ConfigError
from rlctl.models.load import load_policy
from rlctl.telemetry.metrics import read
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.loop import Run
from rlctl.train.model.adapters.quantized import numbers, packed, settings
from rlctl.train.model.policy import Policy, load
from rlctl.train.ranks import Ranks
from rlctl.train.weights.export import export
from rlctl.wire.published import read_base

from .conftest import config_for
from .running import World, facts, final_weights, finished, replay, run, torchrun
from .test_policy import samples, update

LORA = {"rank": 4, "alpha": 8, "quantize": "nf4"}
TRAIN = {"lora": LORA, "optim": {"lr": 1e-2}}
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes (extra qlora)"
)


def learned(config: Config, model_dir: Path) -> tuple[Policy, list[float]]:
    torch.manual_seed(0)
    policy = load(str(model_dir), config, Ranks(config))
    optimizer = optim.adamw(policy.parameters(), Optim(lr=1e-2))
    batch = grid(samples(), 1, 512, "token_mean")[0]
    return policy, [update(policy, optimizer, batch).sums["loss"] for _ in range(3)]


def test_without_the_package_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"train.lora.quantize = \"nf4\" needs bitsandbytes: pip install \"rlctl\[qlora"
    ):
        settings("nf4", "float32")


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_linear_layers_are_in_four_bits_and_only_adapters_learn(kind: str, model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, train={"lora": {**LORA, "quantize": kind}})
    torch.manual_seed(0)
    policy = load(str(model_dir), config, Ranks(config))
    codes = {name: p.detach().clone() for name, p in policy.named_parameters() if packed(p)}
    assert len(codes) == 2 * 7
    assert sum(code.numel() * code.element_size() for code in codes.values()) == 2 * 7 * 64 * 64 // 2
    assert sum(numbers(p) for p in policy.parameters() if packed(p)) == 2 * 7 * 64 * 64
    optimizer = optim.adamw(policy.parameters(), Optim(lr=1e-2))
    batch = grid(samples(), 1, 512, "token_mean")[0]
    first = policy(batch.micros[0]).logprobs.detach()
    for _ in range(3):
        assert update(policy, optimizer, batch).grad_norm > 0
    assert not torch.allclose(policy(batch.micros[0]).logprobs, first, atol=1e-3), "it has learnt"
    parameters = dict(policy.named_parameters())
    assert all(torch.equal(parameters[name], code) for name, code in codes.items())
    assert all("lora_" in name for name, p in parameters.items() if p.requires_grad)


@needs_bitsandbytes
def test_what_leaves_the_trainer_is_a_plain_model_that_computes_what_it_computes(
    model_dir: Path, tmp_path: Path
) -> None:
    policy, _ = learned(config_for(model_dir, tmp_path, train={"lora": LORA}), model_dir)
    weights, saved = export(policy, "float32", keep=True), load_file(model_dir / "model.safetensors")
    assert weights.keys() == saved.keys() and all(weights[name].shape == saved[name].shape for name in saved)
    plain = load(str(model_dir), config_for(model_dir, tmp_path), Ranks(config_for(model_dir, tmp_path)))
    micro = grid(samples(), 1, 512, "token_mean")[0].micros[0]
    with torch.no_grad():
        untouched = plain(micro).logprobs
        plain.lm.load_state_dict(weights, strict=False)
        assert torch.allclose(plain(micro).logprobs, policy(micro).logprobs, atol=1e-5)
        assert (untouched - policy(micro).logprobs).abs().max() > 1e-3


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_writes_its_base_once_and_publishes_adapters_on_it(
    dtype: str, model_dir: Path, tmp_path: Path, world: World
) -> None:
    sections: dict[str, Any] = {"model": {"dtype": dtype}, "train": TRAIN}
    config = world.config(model_dir, tmp_path, run={"steps": 2}, **sections)
    ranks = Ranks(config)
    try:
        whole = Run(config, ranks)
        whole.to_the_end()
        base = tmp_path / "weights" / "base"
        assert read_base(tmp_path / "weights" / "v2").path == str(base)
        assert not (tmp_path / "weights" / "v2" / "model.safetensors").exists()
        served, _ = Reader().read(tmp_path / "weights" / "v2", 2)
        expected = export(whole.learner.policy, dtype, keep=True)
        assert served.keys() == expected.keys()
        assert all(torch.equal(served[name], expected[name]) for name in served)
        stored, original = load_file(base / "model.safetensors"), load_file(model_dir / "model.safetensors")
        rounded = [name for name in stored if not torch.equal(stored[name], original[name].to(stored[name].dtype))]
        assert len(rounded) == 2 * 7, "the layers in four bits"
        load_policy(str(base), dtype), load_policy(str(tmp_path / "checkpoints" / "step_2" / "hf"), dtype)
    finally:
        ranks.close()


@needs_bitsandbytes
def test_six_steps_in_four_bits_equal_three_and_a_resume_and_three_to_the_last_bit(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    straight = replay(model_dir, tmp_path / "straight", recorded, 6, train=TRAIN)
    rows = run(straight)
    halves = replay(model_dir, tmp_path / "halves", recorded, 6, train=TRAIN)
    first = Run(halves, Ranks(halves))
    while first.state.step < 3:
        first.step()
    first.checkpoints.close()
    assert facts(run(halves)) == facts(rows)
    one, other = final_weights(straight, 6), final_weights(halves, 6)
    assert all(torch.equal(one[name], other[name]) for name in one)


@needs_bitsandbytes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_and_two_processes_in_four_bits_learn_the_same(model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    found = {}
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        finished(torchrun(replay(model_dir, folder, recorded, 4, train=TRAIN), folder, processes))
        found[processes] = list(read(folder / "metrics" / "train.jsonl"))
    for key in ("loss", "grad_norm", "entropy"):
        assert [row[key] for row in found[2]] == pytest.approx([row[key] for row in found[1]], rel=1e-4)
