"""Activation checkpointing and compilation of the transformer blocks change memory and time, never a number."""

import gc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from rlctl.config.algorithm import Algo
from rlctl.errors import ConfigError
from rlctl.train.data.batches import grid
from rlctl.train.data.samples import TrainSample
from rlctl.train.model import critic
from rlctl.train.model.policy import Policy, load, load_frozen
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .test_policy import CUTS, EVERY_LOSS, gradient_of, loaded, samples, with_columns

WAYS: dict[str, Any] = {
    "full": {"activation_checkpointing": "full"},
    "selective": {"activation_checkpointing": "selective"},
    "first block": {"activation_checkpointing": True, "checkpoint_layers": 1},
    "first block, selective": {"activation_checkpointing": "selective", "checkpoint_layers": 1},
}

TRAIN: dict[str, dict[str, Any]] = {"": {}, **{name: {"memory": memory} for name, memory in WAYS.items()}}


def batch_for(algo: Algo) -> list[TrainSample]:
    batch = with_columns()
    if algo.old == "interpolate":
        batch = [replace(s, columns={"blend": np.full(s.trainable, 0.5, np.float32)}) for s in batch]
    return batch


@cache
def module_for(valued: bool, model_dir: Path, way: str = "") -> torch.nn.Module:
    """The policy, or the critic with a head that is not zero."""
    config = config_for(model_dir, model_dir, train=TRAIN[way])
    if not valued:
        return load(str(model_dir), config, Ranks(config))
    module = critic.load(config, str(model_dir), Ranks(config))
    torch.nn.init.constant_(module.head.weight, 0.1)
    return module


def agree(one: tuple[float, torch.Tensor], other: tuple[float, torch.Tensor]) -> None:
    assert other[0] == pytest.approx(one[0], rel=1e-5)
    assert torch.linalg.norm(one[1]) > 0
    assert torch.linalg.norm(other[1] - one[1]) < 1e-5 * torch.linalg.norm(one[1])


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_every_loss_is_the_same_however_activations_are_checkpointed(name: str, model_dir: Path) -> None:
    algo = Algo(**EVERY_LOSS[name])
    config = config_for(model_dir, model_dir)
    other = load_frozen(str(model_dir), config, Ranks(config))
    with torch.no_grad():
        other.lm.get_output_embeddings().weight.mul_(1.5)
    for cut in ({"micro_tokens": 512}, CUTS["one forest"]):
        plain = gradient_of(module_for(algo.needs_critic, model_dir), algo, batch_for(algo), cut, other)
        for way in WAYS:
            lean = module_for(algo.needs_critic, model_dir, way)
            agree(plain, gradient_of(lean, algo, batch_for(algo), cut, other))


class Counter(TorchDispatchMode):
    """Counts calls of operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] = self.calls.get(func.name(), 0) + 1
        return func(*args, **(kwargs or {}))


def cost(policy: Policy) -> tuple[int, dict[str, int]]:
    """Bytes that one forward pass keeps for the backward pass, and operations of both.

    Kept is what autograd has saved and what Python holds (selective checkpointing does), if it was not there before.
    """
    micro = grid(samples(), 1, 100_000, "token_mean")[0].micros[0]
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with Counter() as counter:
        before = alive()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = policy(micro).logprobs.sum()
        storages |= alive()
        loss.backward()
    return sum(size for at, size in storages.items() if at not in before), counter.calls


def alive() -> dict[int, int]:
    """Address and bytes of what Python's tensors hold."""
    gc.collect()
    # Not of fakes, which have no memory: compilation leaves some behind in the process.
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


def test_full_checkpointing_computes_matrix_products_twice_and_selective_only_what_is_cheap(
    model_dir: Path, tmp_path: Path
) -> None:
    plain, full, selective = (
        cost(loaded(model_dir, tmp_path, memory=memory)[0])[1] for memory in ({}, WAYS["full"], WAYS["selective"])
    )
    products = lambda calls: calls.get("aten::mm", 0) + calls.get("aten::addmm", 0)  # noqa: E731
    # Two blocks of q, k, v, o, gate, up, down; their last product is not needed again by the backward pass.
    assert products(plain) < products(full) <= products(plain) + 2 * 7
    assert products(selective) == products(plain)
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert (plain[attention], full[attention], selective[attention]) == (2, 4, 2)
    assert plain["aten::rsqrt"] < selective["aten::rsqrt"]


@pytest.mark.slow
def test_the_more_is_checkpointed_the_less_is_kept(model_dir: Path, tmp_path: Path) -> None:
    ways = ({}, WAYS["first block"], WAYS["selective"], WAYS["full"])
    none, first, selective, full = (cost(loaded(model_dir, tmp_path, memory=memory)[0])[0] for memory in ways)
    assert none > first > full
    assert none > selective > full


def test_what_is_only_answered_is_not_computed_twice_nor_kept(model_dir: Path, tmp_path: Path) -> None:
    policy, _ = loaded(model_dir, tmp_path, memory=WAYS["selective"])
    micro = grid(samples(), 1, 100_000, "token_mean")[0].micros[0]
    with torch.no_grad(), Counter() as counter:
        policy(micro)
    assert counter.calls["aten::_scaled_dot_product_flash_attention_for_cpu"] == 2


def test_more_blocks_than_there_are_is_an_error_with_the_number(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_layers = 3, but the model has 2"):
        loaded(model_dir, tmp_path, memory={"activation_checkpointing": True, "checkpoint_layers": 3})


def test_a_number_of_blocks_without_checkpointing_is_a_contradiction(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_layers"):
        config_for(model_dir, tmp_path, train={"memory": {"checkpoint_layers": 1}})
