"""Adapters in files: merged by hand, and as peft merges them; whole models of them by `rlctl merge`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlctl.config.learning import Tiny
from rlctl.errors import ConfigError
from rlctl.models.adapters import merge, merged, named, read
from rlctl.models.load import load_policy
from rlctl.models.merging import merge_into
from rlctl.models.tiny import build_tiny
from rlctl.wire.published import Base, Unusable, sha256, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    build_tiny(folder, Tiny(hidden_size=32, layers=2, heads=1, mlp=48), max_context=64, seed=0)
    return folder


@pytest.fixture
def adapters(base: Path, tmp_path: Path) -> Path:
    """Random adapters, made and saved by peft."""
    return saved_by_peft(base, tmp_path / "adapters")


def saved_by_peft(base: Path, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(1)
    model = peft.get_peft_model(load_policy(str(base)), peft.LoraConfig(
        **{"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", **settings}
    ))  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    model.save_pretrained(folder)
    return folder


def described(base: Path, dtype: str = "float32") -> Base:
    return Base(str(base), {"model.safetensors": sha256(base / "model.safetensors")}, dtype)


def test_a_merged_weight_by_hand() -> None:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    a, b = torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0], [4.0]])  # B A = [[2, -2], [4, -4]]
    assert merge(weight, a, b, 0.5, torch.float32).tolist() == [[2.0, 1.0], [5.0, 2.0]]


def test_the_weight_is_rounded_to_what_the_trainer_computes_with_before_it_is_merged() -> None:
    # In bfloat16 1.001 is 1; 1 + 0.003 is 1, but 1.001 + 0.003 would be 1.0078125.
    weight, a, b = torch.tensor([[1.001]]), torch.tensor([[0.003]]), torch.tensor([[1.0]])
    assert merge(weight, a, b, 1.0, torch.bfloat16).item() == 1.0
    assert (weight + a).to(torch.bfloat16).item() == 1.0078125, "the order makes no difference here"


def test_what_peft_saved_is_merged_as_peft_merges_it(base: Path, adapters: Path) -> None:
    ours = dict(merged(read(adapters), described(base)))
    model: Any = peft.PeftModel.from_pretrained(load_policy(str(base)), str(adapters))
    theirs = model.merge_and_unload().state_dict()
    before = load_file(base / "model.safetensors")
    assert ours.keys() == before.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    changed = {name for name in before if not torch.equal(before[name], ours[name])}
    assert len(changed) == 4 and all(name.endswith(("q_proj.weight", "down_proj.weight")) for name in changed)


def test_the_names_written_are_those_that_peft_writes(adapters: Path) -> None:
    found = load_file(adapters / "adapter_model.safetensors")
    again = named(read(adapters).pairs)
    assert found.keys() == again.keys() and all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"use_dora": True}, "use_dora = True"), ({"use_rslora": True}, "use_rslora"), ({"bias": "all"}, "bias = 'all'")],
)
def test_adapters_of_another_formula_are_refused_by_name(
    settings: dict[str, Any], words: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(Unusable, match=words):
        read(saved_by_peft(base, tmp_path / "other", **settings))


def test_adapters_for_another_model_are_refused(base: Path, adapters: Path, tmp_path: Path) -> None:
    for name, tiny, words in (
        ("wide", Tiny(hidden_size=64, layers=2, heads=1, mlp=48), r"is \[64, 48\], its adapter \[32, 48\]"),
        ("short", Tiny(hidden_size=32, layers=1, heads=1, mlp=48), "has no weight model.layers.1"),
    ):
        build_tiny(tmp_path / name, tiny, max_context=64, seed=0)
        with pytest.raises(Unusable, match=words):
            dict(merged(read(adapters), described(tmp_path / name)))


def test_a_base_in_several_files_is_read_as_one(base: Path, adapters: Path, tmp_path: Path) -> None:
    load_policy(str(base)).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    one, parts = (dict(merged(read(adapters), described_any)) for described_any in (
        described(base), Base(str(tmp_path / "parts"), {}, "float32")))  # fmt: skip
    assert one.keys() == parts.keys() and all(torch.equal(one[name], parts[name]) for name in one)


# ---------------------------------------------------------------- rlctl merge


def rlctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rlctl", *words], capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_the_command_makes_a_model_of_adapters_from_elsewhere(base: Path, adapters: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole"
    refused = rlctl("merge", str(adapters), str(out))
    assert refused.returncode == 2 and "name the folder with --base" in refused.stderr
    done = rlctl("merge", str(adapters), str(out), "--base", str(base), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"adapters": str(adapters), "model": str(out)}
    model: Any = peft.PeftModel.from_pretrained(load_policy(str(base)), str(adapters))
    theirs, ours = model.merge_and_unload().state_dict(), AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert AutoTokenizer.from_pretrained(out).encode("up") == AutoTokenizer.from_pretrained(base).encode("up")
    again = rlctl("merge", str(adapters), str(out), "--base", str(base))
    assert again.returncode == 2 and "is there already" in again.stderr


def test_a_base_that_has_changed_is_refused_and_one_that_has_moved_is_named(
    base: Path, adapters: Path, tmp_path: Path
) -> None:
    write_base(adapters, described(base))
    moved = tmp_path / "moved"
    shutil.copytree(base, moved)
    merge_into(adapters, tmp_path / "one", str(moved))
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"sha256 is .*; name the folder of the adapters' base with --base"):
        merge_into(adapters, tmp_path / "two", str(moved))
    assert not list(tmp_path.glob("two*"))


def test_a_folder_of_adapters_is_no_model_path_and_the_error_says_what_makes_one(adapters: Path) -> None:
    with pytest.raises(ConfigError, match="it holds adapters, of which `rlctl merge` makes a model"):
        load_policy(str(adapters))
