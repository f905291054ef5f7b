"""LoRA: adapters alone in publications and checkpoints, and what they stand on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlctl.config import Config
from rlctl.config.learning import Optim
from rlctl.engines.embedded.weights import Reader
from rlctl.errors import ConfigError, RlctlError
from rlctl.models.load import load_policy
from rlctl.models.merging import merge_into
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.loop import Run
from rlctl.train.model.policy import Policy, load
from rlctl.train.ranks import Ranks
from rlctl.train.weights import outgoing as outgoings
from rlctl.train.weights import publish
from rlctl.train.weights.base import base_of
from rlctl.train.weights.export import export
from rlctl.train.weights.outgoing import Outgoing
from rlctl.wire.published import read_base

from .conftest import config_for
from .running import World, facts, final_weights, finished, replay, run, torchrun
from .test_policy import samples, update

LORA = {"rank": 2, "alpha": 8}


def learned(config: Config, model: Path) -> tuple[Policy, Outgoing]:
    """A policy whose adapters have learnt something."""
    ranks = Ranks(config)
    torch.manual_seed(0)
    policy = load(str(model), config, ranks)
    optimizer = optim.adamw(policy.parameters(), Optim(lr=1e-2))
    batch = grid(samples(), 1, 512, "token_mean")[0]
    for _ in range(3):
        update(policy, optimizer, batch)
    return policy, Outgoing(policy, config.model.dtype, ranks, base_of(policy, config, str(model), ranks))


def as_bfloat16(model: Path, folder: Path) -> Path:
    """The same model in a file of bfloat16."""
    shutil.copytree(model, folder)
    weights = {name: value.bfloat16() for name, value in load_file(model / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# ---------------------------------------------------------------- publications


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_an_engine_makes_the_trainers_merged_export_of_published_adapters_bit_for_bit(
    dtype: str, stored: str, model_dir: Path, tmp_path: Path
) -> None:
    model = model_dir if stored == "float32" else as_bfloat16(model_dir, tmp_path / "model")
    config = config_for(model, tmp_path / "run", model={"dtype": dtype}, train={"lora": LORA})
    policy, outgoing = learned(config, model)
    try:
        checksum = publish.write(outgoing, tmp_path / "v3", 3)
        found, told = Reader().read(tmp_path / "v3", 3)
        expected = export(policy, dtype, keep=True)
        assert told == checksum
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in found
        )
        before = export(policy, dtype, keep=True, merged=False)
        assert sum(not torch.equal(before[name], found[name]) for name in found) == 2 * 7, "every linear layer"
    finally:
        outgoing.ranks.close()


def test_a_publication_holds_two_small_matrices_a_layer_and_nothing_else(model_dir: Path, tmp_path: Path) -> None:
    _, outgoing = learned(config_for(model_dir, tmp_path, train={"lora": LORA}), model_dir)
    publish.write(outgoing, tmp_path / "alone", 1)
    publish.write(outgoing, tmp_path / "whole", 1, whole=True)
    tensors = load_file(tmp_path / "alone" / "adapter_model.safetensors")
    # width 64, two layers: q k v o of 64 x 64, gate up down of 64 x 64 (mlp = 64): 7 (64 + 64) r numbers a layer
    assert sum(tensor.numel() for tensor in tensors.values()) == 2 * 7 * (64 + 64) * 2
    sizes = {name: sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("alone", "whole")}
    assert sizes["alone"] < sizes["whole"] / 8
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == [
        "PUBLISHED.json", "adapter_config.json", "adapter_model.safetensors", "base.json",
    ]  # fmt: skip


def test_transformers_and_peft_load_what_is_published_and_compute_the_same(model_dir: Path, tmp_path: Path) -> None:
    policy, outgoing = learned(config_for(model_dir, tmp_path, train={"lora": LORA}), model_dir)
    publish.write(outgoing, tmp_path / "v1", 1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "v1").eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        theirs, ours = model(ids).logits, policy.lm(ids).logits
        plain = load_policy(str(model_dir))(ids).logits
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert (theirs - plain).abs().max() > 0.1, "without adapters it is another model"


def test_a_base_whose_files_are_not_what_is_trained_is_written_once(model_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_dir, model)
    weights = load_file(model / "model.safetensors") | {"model.rotary.inv_freq": torch.ones(3)}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = config_for(model, tmp_path / "run", train={"lora": LORA})
    policy, outgoing = learned(config, model)
    own = tmp_path / "run" / "weights" / "base"
    assert outgoing.base and outgoing.base.path == str(own)
    assert set(load_file(own / "model.safetensors")) == set(load_file(model_dir / "model.safetensors"))
    written = (own / "model.safetensors").stat().st_mtime_ns
    assert base_of(policy, config, str(model), outgoing.ranks) == outgoing.base
    assert (own / "model.safetensors").stat().st_mtime_ns == written
    publish.write(outgoing, tmp_path / "v1", 1)
    found, _ = Reader().read(tmp_path / "v1", 1)
    assert all(torch.equal(found[name], value) for name, value in export(policy, "float32", keep=True).items())


def test_the_base_of_a_model_from_the_hub_is_its_folder_in_the_cache(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub" / "models--some--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("a" * 40)
    shutil.copytree(model_dir, cache / "snapshots" / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    config = config_for(model_dir, tmp_path / "run", train={"lora": LORA})
    policy, outgoing = learned(config, model_dir)
    base = base_of(policy, config, "some/model", outgoing.ranks)
    assert base and base.path == str(cache / "snapshots" / ("a" * 40))
    assert outgoing.base and base.sha256 == outgoing.base.sha256


def test_a_run_publishes_adapters_and_its_last_checkpoint_is_a_whole_model(
    model_dir: Path, tmp_path: Path, world: World
) -> None:
    run(world.config(model_dir, tmp_path, run={"steps": 3}, train={"lora": LORA}, ckpt={"every": 1, "keep": 3}))
    assert [told["version"] for told in world.engine.told] == [0, 1, 2, 3]
    for folder in (tmp_path / "weights").iterdir():
        assert (folder / "adapter_model.safetensors").exists() and not (folder / "model.safetensors").exists()
    root = tmp_path / "checkpoints"
    assert [(root / f"step_{n}" / "hf").exists() for n in (1, 2, 3)] == [False, False, True]
    served, _ = Reader().read(tmp_path / "weights" / "v3", 3)
    saved = load_file(root / "step_3" / "hf" / "model.safetensors")
    assert all(torch.equal(served[name], saved[name]) for name in saved)
    for n in (1, 2, 3):
        assert read_base(root / f"step_{n}" / "adapter").path == str(model_dir)
        assert (root / f"step_{n}" / "adapter" / "tokenizer.json").exists()


@pytest.mark.parametrize(("merged", "found"), [("every", [True, True]), ("never", [False, False])])
def test_whole_weights_are_published_and_saved_where_that_is_asked_for(
    merged: str, found: list[bool], model_dir: Path, tmp_path: Path, world: World
) -> None:
    sections: dict[str, Any] = {"ckpt": {"every": 1, "merged": merged}, "sync": {"lora": "merged"}}
    run(world.config(model_dir, tmp_path, run={"steps": 2}, train={"lora": LORA}, **sections))
    assert [(tmp_path / "checkpoints" / f"step_{n}" / "hf").exists() for n in (1, 2)] == found
    for folder in (tmp_path / "weights").iterdir():
        assert (folder / "model.safetensors").exists() and not (folder / "adapter_model.safetensors").exists()


def test_weights_that_are_saved_and_published_are_gathered_once(
    model_dir: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(outgoings, "export", lambda *args, **more: calls.append(1) or export(*args, **more))
    run(world.config(model_dir, tmp_path, run={"steps": 2}, ckpt={"every": 1}))
    assert len(calls) == 3, "version 0, and each of two steps"


# ---------------------------------------------------------------- checkpoints


def test_six_steps_of_adapters_equal_three_and_a_resume_and_three_to_the_last_bit(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    settings: dict[str, Any] = {"train": {"lora": LORA, "optim": {"lr": 1e-2}}}
    straight = replay(model_dir, tmp_path / "straight", recorded, 6, **settings)
    rows = run(straight)
    halves = replay(model_dir, tmp_path / "halves", recorded, 6, **settings)
    first = Run(halves, Ranks(halves))
    while first.state.step < 3:
        first.step()
    first.checkpoints.close()
    folder = tmp_path / "halves" / "checkpoints" / "step_3"
    assert sorted(path.name for path in folder.iterdir()) == ["adapter", "scalars.pt", "state.json", "trainer"]
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) < 30_000
    torch.manual_seed(123)
    assert facts(run(halves)) == facts(rows)
    one, other = final_weights(straight, 6), final_weights(halves, 6)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_adapters_do_not_go_on_beside_another_base_or_with_other_settings(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_dir, model)

    def going_on(**lora: Any) -> Config:
        return replay(model, tmp_path / "run", recorded, 4, train={"lora": {**LORA, **lora}})

    run(replay(model, tmp_path / "run", recorded, 3, train={"lora": LORA}))
    for lora, words in (
        ({"alpha": 9}, "train.lora.alpha was 8, now it is 9"),
        ({"rank": 3}, "train.lora.rank was 2, now it is 3"),
        ({"target_modules": ["q_proj"]}, "train.lora.target_modules was"),
    ):
        with pytest.raises(RlctlError, match=words):
            run(going_on(**lora))
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        RlctlError, match=r"step_3.adapter: its adapters were trained on .*model, whose weights are not"
    ):
        run(going_on())
    shutil.rmtree(model)
    shutil.copytree(model_dir, model)
    assert [row["step"] for row in run(going_on())][-1] == 4


def test_whole_weights_do_not_become_adapters_on_the_way(model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    run(replay(model_dir, tmp_path, recorded, 3))
    with pytest.raises(RlctlError, match=r"step_3.adapter holds no adapters to go on with"):
        run(replay(model_dir, tmp_path, recorded, 6, train={"lora": LORA}))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("before", "after", "parallel"), [(2, 2, {}), (1, 2, {}), (2, 2, {"tensor": 2}), (2, 2, {"pipeline": 2})]
)
def test_adapters_go_on_with_any_number_of_processes(
    before: int, after: int, parallel: dict[str, int], model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    straight.mkdir(), halves.mkdir()
    train = {"lora": LORA, "optim": {"lr": 1e-2}, "parallel": parallel}
    finished(torchrun(replay(model_dir, straight, recorded, 6, train=train), straight, before))
    finished(torchrun(replay(model_dir, halves, recorded, 3, train=train), halves, before))
    assert len(list((halves / "checkpoints" / "step_3" / "trainer").glob("*.distcp"))) == before
    finished(torchrun(replay(model_dir, halves, recorded, 6, train=train), halves, after))
    paths = [
        folder / "checkpoints" / "step_6" / "adapter" / "adapter_model.safetensors" for folder in (straight, halves)
    ]
    one, other = map(load_file, paths)
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)
    assert max(value.abs().max() for name, value in one.items() if "lora_B" in name) > 1e-2, "they have learnt"
    step = straight / "checkpoints" / "step_6"
    merge_into(step / "adapter", tmp_path / "merged")
    again, saved = (load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", step / "hf"))
    assert all(torch.allclose(again[name], saved[name], rtol=0, atol=1e-7) for name in saved)


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (["lm_head"], "shares its weight with model.embed_tokens.weight"),
        (["embed_tokens"], "model.embed_tokens is a Embedding; only linear layers"),
        (["nothing"], "train.lora.target_modules = "),
    ],
)
def test_layers_whose_adapters_could_not_be_merged_are_refused(
    modules: list[str], words: str, model_dir: Path, tmp_path: Path
) -> None:
    config = config_for(model_dir, tmp_path, train={"lora": {"rank": 2, "target_modules": modules}})
    with pytest.raises(ConfigError, match=words):
        load(str(model_dir), config, Ranks(config))


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"lora": {"quantize": "nf4"}}, "[train.lora.rank] = 0"),
        ({"lora": {"rank": 4, "quantize": "nf4"}, "parallel": {"tensor": 2}}, "[train.parallel.tensor]"),
        ({"lora": {"rank": 4, "quantize": "nf4"}, "parallel": {"pipeline": 2}}, "[train.parallel.pipeline]"),
        ({"lora": {"rank": 4, "quantize": "nf4"}, "compile": True}, "[train.compile]"),
        ({"lora": {"rank": 4, "quantize": "nf4"}, "fsdp": {"cpu_offload": True}}, "[train.fsdp.cpu_offload]"),
    ],
)
def test_four_bits_are_refused_with_what_cannot_use_them(
    train: dict[str, Any], words: str, model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as error:
        config_for(model_dir, tmp_path, train=train)
    assert "[train.lora.quantize]" in str(error.value) and words in str(error.value)


def test_the_settings_written_are_pefts_and_the_same_every_time(model_dir: Path, tmp_path: Path) -> None:
    _, outgoing = learned(config_for(model_dir, tmp_path, train={"lora": LORA}), model_dir)
    publish.write(outgoing, tmp_path / "v1", 1)
    told = json.loads((tmp_path / "v1" / "adapter_config.json").read_text())
    assert (told["peft_type"], told["r"], told["lora_alpha"], told["task_type"]) == ("LORA", 2, 8, "CAUSAL_LM")
    assert told["base_model_name_or_path"] == str(model_dir)
    assert told["target_modules"] == sorted(told["target_modules"])
