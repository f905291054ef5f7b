"""Ranks that work together (tensor, sequence, pipeline, hybrid; torchrun, gloo) compute what one rank computes.

Under torchrun this file is the program: it writes, on rank 0, what it found.
"""

import copy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlctl.config import Config
from rlctl.config.algorithm import Algo
from rlctl.config.learning import Optim
from rlctl.errors import ConfigError
from rlctl.train.data.batches import grid
from rlctl.train.layout import layout_of
from rlctl.train.learning import optim
from rlctl.train.model.pipeline import answers
from rlctl.train.model.policy import load, whole
from rlctl.train.model.stages import tied
from rlctl.train.objective.losses import policy_loss
from rlctl.train.ranks import Ranks
from rlctl.train.weights import publish
from rlctl.train.weights.export import export
from rlctl.train.weights.outgoing import Outgoing

from .conftest import config_for
from .test_policy import EVERY_LOSS, samples
from .test_tree_ranks import FOREST, LEAN, Found, launched, measured

pytestmark = pytest.mark.timeout(900)
ROWS: dict[str, Any] = {}
PACKED = {"row_tokens": 128}
TENSOR, SEQUENCE, PIPELINE = {"tensor": 2}, {"sequence": 2}, {"pipeline": 2}
RING = SEQUENCE | {"sequence_kind": "ring"}
FEW = ("dual clip", "gspo", "kl full", "value")
"""A loss of tokens, one of sequences, one of whole distributions, and the critic's."""
TWO: dict[str, tuple[str, dict[str, Any], dict[str, Any], Iterable[str]]] = {
    "tensor": ("qwen2", {"parallel": TENSOR}, ROWS, EVERY_LOSS),
    "tensor, lean forests": ("qwen2", {"parallel": TENSOR, "memory": LEAN}, FOREST, FEW),
    "tensor, norms of heads": ("qwen3", {"parallel": TENSOR}, ROWS, FEW),
    "tensor, lora": ("qwen2", {"parallel": TENSOR, "lora": {"rank": 4}}, ROWS, FEW[:3]),
    "sequence": ("qwen2", {"parallel": SEQUENCE}, ROWS, FEW),
    "sequence, packed": ("qwen2", {"parallel": SEQUENCE}, PACKED, EVERY_LOSS),
    "sequence, lean packed": ("qwen2", {"parallel": SEQUENCE, "memory": LEAN, "prefix_tree": False}, PACKED, FEW),
    "sequence, forests": ("qwen2", {"parallel": SEQUENCE}, FOREST, EVERY_LOSS),
    "sequence, grouped heads": ("qwen3", {"parallel": SEQUENCE}, PACKED, FEW),
    "ring": ("qwen2", {"parallel": RING}, ROWS, FEW),
    "ring, packed": ("qwen2", {"parallel": RING}, PACKED, EVERY_LOSS),
    "ring, lean packed": ("qwen2", {"parallel": RING, "memory": LEAN, "prefix_tree": False}, PACKED, FEW),
    "ring, forests": ("qwen2", {"parallel": RING}, FOREST, EVERY_LOSS),
    "sequence, four bits": ("qwen2", {"parallel": SEQUENCE, "lora": {"rank": 4, "quantize": "nf4"}}, PACKED, FEW[:3]),
    "ring, odd heads": ("odd", {"parallel": RING}, PACKED, FEW),
    "pipeline": ("qwen2", {"parallel": PIPELINE}, ROWS, EVERY_LOSS),
    "pipeline, packed": ("qwen2", {"parallel": PIPELINE, "prefix_tree": False}, PACKED, EVERY_LOSS),
    "pipeline, forests": ("qwen2", {"parallel": PIPELINE}, FOREST, EVERY_LOSS),
    "pipeline, lean forests": ("qwen2", {"parallel": PIPELINE, "memory": LEAN}, FOREST, FEW),
    "pipeline, untied": ("qwen3", {"parallel": PIPELINE}, ROWS, FEW),
    "pipeline, lora": ("qwen2", {"parallel": PIPELINE, "lora": {"rank": 4}}, ROWS, FEW[:3]),
}
"""Model, [train], arguments of `grid`, losses: on two ranks."""
FOUR = {
    "hybrid": ("qwen2", {"fsdp": {"strategy": "hybrid", "shard_size": 2}}, ROWS, FEW),
    "data and tensor": ("qwen2", {"parallel": TENSOR}, ROWS, FEW),
    "data and tensor, whole weights": ("qwen2", {"parallel": TENSOR, "fsdp": {"strategy": "none"}}, ROWS, FEW),
    "data and sequence": ("qwen2", {"parallel": SEQUENCE}, PACKED, FEW),
    "tensor and sequence": ("qwen3 of 4", {"parallel": TENSOR | SEQUENCE}, FOREST, FEW),
    "ring of four": ("qwen2", {"parallel": {"sequence": 4, "sequence_kind": "ring"}}, PACKED, FEW),
    "ring and tensor": ("qwen2", {"parallel": TENSOR | RING}, FOREST, FEW),
    "four stages": ("deep", {"parallel": {"pipeline": 4}}, ROWS, FEW),
    "data and pipeline": ("qwen2", {"parallel": PIPELINE}, ROWS, FEW),
    "data and pipeline, whole weights": ("qwen2", {"parallel": PIPELINE, "fsdp": {"strategy": "none"}}, ROWS, FEW),
    "tensor and pipeline": ("qwen2", {"parallel": TENSOR | PIPELINE}, FOREST, FEW),
    "sequence and pipeline": ("qwen2", {"parallel": SEQUENCE | PIPELINE}, PACKED, FEW),
    "ring and pipeline": ("qwen2", {"parallel": RING | PIPELINE}, PACKED, FEW),
}
"""On four."""
REFUSED = {
    "odd heads": (
        "odd",
        {"parallel": TENSOR},
        {},
        "train.parallel.tensor = 2 does not divide the model's num_att",
    ),
    "odd width": ("width", {"parallel": TENSOR}, {}, "does not divide dimension 0 of lm.model.layers.0.mlp.gate_proj"),
    "odd sequence": ("odd", {"parallel": SEQUENCE}, {}, "3 key-value heads cannot be dealt"),
    "eager": ("qwen2", {"parallel": SEQUENCE}, {"attention": "eager"}, 'model.attention = "eager"; it needs "sdpa"'),
    "liger": (
        "qwen2",
        {"parallel": TENSOR, "liger": True},
        {},
        "train.liger = true cannot be used: its kernels do not",
    ),
    "windows": ("windows", {"parallel": SEQUENCE}, {}, "train.parallel.sequence cannot be used: it has layers of"),
    "one layer": ("shallow", {"parallel": PIPELINE}, {}, "train.parallel.pipeline = 2, but the model has 1 layers"),
    "scaled embedding": (
        "granite",
        {"parallel": PIPELINE},
        {},
        "GraniteModel changes the states between its embedding",
    ),
    "idle stage": (
        "qwen2",
        {"parallel": PIPELINE, "lora": {"rank": 4, "target_modules": r".*layers\.0\..*q_proj"}},
        {},
        "train.lora.target_modules names no module of stage 1",
    ),
    "learned positions": ("gpt2", {"parallel": PIPELINE}, {}, "GPT2Model has wpe, ln_f, where one norm"),
}
"""Model, [train], [model], words of the error."""


def arranged(ranks: Ranks, config: Config) -> Ranks:
    """The same processes in another layout."""
    other = copy.copy(ranks)
    other.layout = layout_of(config, ranks.world)
    for name in ("mesh", "sequence_group"):
        other.__dict__.pop(name, None)
    return other


def learned(path: Path, ranks: Ranks, cut: dict[str, Any], train: dict[str, Any], out: Path | None) -> dict[str, Any]:
    """Weights, gradient norms and log-probabilities after three steps, on rank 0; published to `out`."""
    config = config_for(path, path, train=train)
    torch.manual_seed(0)
    policy = load(str(path), config, ranks)
    optimizer = optim.adamw(policy.parameters(), Optim(eps=1e-4))
    layout, norms = ranks.layout, []
    loss = lambda a, b, t: policy_loss(a, b, t, Algo())  # noqa: E731
    for seed in range(3):
        mine = grid(samples(seed), layout.data, 256, "token_mean", **cut)[layout.data_place(ranks.rank)]
        norms.append(optim.step(policy, optimizer, mine, loss, layout.averaged, 1e-3, 0.5).grad_norm)
    probe = grid(samples(9), 1, 100_000, "token_mean")[0].micros[0]
    logprobs = ranks.gather_data(answers(policy, [probe]))
    if out:
        publish.write(Outgoing(policy, "float32", ranks), out, 1)
    matrix = tied(policy.lm)
    ends = [x for x in ranks.gather(None if matrix is None else whole(matrix.detach())) if x is not None]
    found = {"weights": export(policy, "float32", keep=ranks.leads), "norms": norms, "ends": ends}
    return found | {"logprobs": logprobs[0][0]} if ranks.first else {}


def refusals(models: Path, ranks: Ranks) -> dict[str, str]:
    said = {}
    for name, (model, train, settings, _) in REFUSED.items():
        config = config_for(models / model, models, train=train, model={"path": str(models / model), **settings})
        try:
            load(str(models / model), config, arranged(ranks, config))
            said[name] = ""
        except ConfigError as error:
            said[name] = str(error)
    return said


def main(models: Path, out: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(config_for(models, models))
    try:
        found: dict[str, Any] = {}
        for way, (model, train, cut, losses) in (TWO if ranks.world == 2 else FOUR).items():
            config = config_for(models / model, models, train=train)
            mine = arranged(ranks, config)
            gradients = measured(models / model, mine, cut, train, losses)
            found[way] = gradients, learned(models / model, mine, cut, train, out.parent / way)
        if ranks.world == 2:
            found["refused"] = refusals(models, ranks)
        if ranks.first:
            torch.save(found, out)
    finally:
        ranks.close()


@pytest.fixture(scope="module")
def models(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2 (tied, biases), Qwen3 (untied, grouped heads with norms), and models that cannot be cut in two."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "qwen2").symlink_to(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    shape = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"max_position_embeddings": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    odd = {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    made = {
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**shape, head_dim=16, tie_word_embeddings=False)),
        "qwen3 of 4": (Qwen3ForCausalLM, Qwen3Config(**shape | {"num_key_value_heads": 4}, head_dim=16)),
        "odd": (Qwen2ForCausalLM, Qwen2Config(**shape | odd)),
        "width": (Qwen2ForCausalLM, Qwen2Config(**shape | {"intermediate_size": 65})),
        "windows": (Qwen2ForCausalLM, Qwen2Config(**shape | window)),
        "deep": (
            Qwen3ForCausalLM,
            Qwen3Config(**shape | {"num_hidden_layers": 6}, head_dim=16, tie_word_embeddings=True),
        ),
        "shallow": (Qwen2ForCausalLM, Qwen2Config(**shape | {"num_hidden_layers": 1})),
        "granite": (GraniteForCausalLM, GraniteConfig(**shape, embedding_multiplier=2.0)),
        "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=len(tokenizer), n_embd=48, n_layer=2, n_head=3, **ends)),
    }
    torch.manual_seed(0)
    for name, (kind, config) in made.items():
        kind(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def one(models: Path) -> dict[str, tuple[Found, dict[str, Any]]]:
    """What one rank computes, by model and adapter."""
    ranks, found = Ranks(config_for(models, models)), {}
    for model, train, _, _ in (TWO | FOUR).values():
        kind = alone(model, train)
        if kind not in found:
            train = {"lora": train["lora"]} if "lora" in train else {}
            losses = EVERY_LOSS if kind == "qwen2" else FEW
            gradients = measured(models / model, ranks, ROWS, train, losses)
            found[kind] = gradients, learned(models / model, ranks, ROWS, train, None)
    return found


def alone(model: str, train: dict[str, Any]) -> str:
    return f"{model} {train['lora']}" if "lora" in train else model


@pytest.fixture(scope="module")
def two(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ran(models, tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ran(models, tmp_path_factory.mktemp("four"), 4)


def ran(models: Path, folder: Path, ranks: int) -> dict[str, Any]:
    out = folder / "found.pt"
    return {**launched("tests.train.test_parallel_ranks", ranks, out, str(models), str(out)), "folder": folder}


def same(way: str, one: dict[str, Any], many: dict[str, Any]) -> None:
    """Losses, gradients, gradient norms, and weights after three steps."""
    model, train, _, _ = (TWO | FOUR)[way]
    (gradients, after), (others, others_after) = one[alone(model, train)], many[way]
    for name, (other, other_gradient) in others.items():
        loss, gradient = gradients[name]
        # The absolute part: a sum over hundreds of tokens of either sign may nearly cancel.
        assert other == pytest.approx(loss, rel=1e-5, abs=2e-5), name
        assert torch.linalg.norm(gradient) > 0
        assert torch.linalg.norm(other_gradient - gradient) < 1e-5 * torch.linalg.norm(gradient), name
    assert others_after["norms"] == pytest.approx(after["norms"], rel=1e-5)
    assert set(others_after["weights"]) == set(after["weights"])
    assert all(torch.equal(end, others_after["ends"][0]) for end in others_after["ends"]), "a tied embedding is one"
    for name, value in after["weights"].items():
        assert torch.linalg.norm(others_after["weights"][name] - value) <= 1e-5 * torch.linalg.norm(value), name
    assert torch.allclose(others_after["logprobs"], after["logprobs"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", TWO)
def test_two_ranks_that_work_together_are_one_rank(way: str, one: dict[str, Any], two: dict[str, Any]) -> None:
    same(way, one, two)


@pytest.mark.slow
@pytest.mark.parametrize("way", FOUR)
def test_four_ranks_in_two_directions_are_one_rank(way: str, one: dict[str, Any], four: dict[str, Any]) -> None:
    same(way, one, four)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["tensor", "tensor, norms of heads", "tensor, lora", "sequence, packed", "pipeline, untied"]
)
def test_what_ranks_publish_together_is_a_plain_model(way: str, two: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(two["folder"] / way, dtype=torch.float32)
    probe = grid(samples(9), 1, 100_000, "token_mean")[0].micros[0]
    with torch.no_grad():
        logits = model(torch.from_numpy(probe.token_ids)).logits.flatten(0, 1)[torch.from_numpy(probe.sources)]
    logits = logits / torch.from_numpy(probe.temperatures)[:, None]
    logprobs = logits.log_softmax(1).gather(1, torch.from_numpy(probe.targets)[:, None])[:, 0]
    assert torch.allclose(two[way][1]["logprobs"], logprobs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_cut_so_is_refused_with_the_key(case: str, two: dict[str, Any]) -> None:
    assert REFUSED[case][-1] in two["refused"][case]


@pytest.mark.parametrize(
    ("train", "world", "words"),
    [
        ({"parallel": {"tensor": 2}}, 3, "train.parallel.tensor = 2 does not divide the trainer's 3 processes"),
        ({"parallel": TENSOR | SEQUENCE}, 2, "train.parallel.tensor = 2 x train.parallel.sequence = 2 does not divide"),
        ({"parallel": PIPELINE}, 3, "train.parallel.pipeline = 2 does not divide the trainer's 3 processes"),
        ({"fsdp": {"strategy": "hybrid", "shard_size": 3}}, 4, "train.fsdp.shard_size = 3 does not divide the 4 ranks"),
        (
            {"parallel": TENSOR, "fsdp": {"strategy": "hybrid", "shard_size": 4}},
            4,
            "shard_size = 4 does not divide the 2 ranks",
        ),
    ],
)
def test_sizes_that_do_not_divide_the_processes_are_refused(
    train: dict[str, Any], world: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        layout_of(config_for(tmp_path, tmp_path, train=train), world)


@pytest.mark.parametrize("fsdp", [{"strategy": "hybrid"}, {"shard_size": 2}])
def test_hybrid_and_its_group_size_go_together(fsdp: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="go together"):
        config_for(tmp_path, tmp_path, train={"fsdp": fsdp})


def test_neighbours_hold_one_set_of_weights_and_one_of_them_speaks(tmp_path: Path) -> None:
    config = config_for(tmp_path, tmp_path, train={"parallel": TENSOR | SEQUENCE})
    layout = layout_of(config, 8)
    assert (layout.data, layout.averaged, layout.shard) == (2, 4, 4)
    assert [layout.data_place(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [rank for rank in range(8) if layout.speaks(rank)] == [0, 4]


def test_a_stage_is_a_block_of_ranks_and_the_last_one_speaks(tmp_path: Path) -> None:
    layout = layout_of(config_for(tmp_path, tmp_path, train={"parallel": TENSOR | PIPELINE}), 8)
    assert (layout.data, layout.averaged, layout.shard, layout.in_stage) == (2, 2, 2, 4)
    assert [layout.stage(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [layout.data_place(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [rank for rank in range(8) if layout.speaks(rank)] == [4, 6]
    assert [rank for rank in range(8) if layout.leads(rank)] == [0, 4]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
