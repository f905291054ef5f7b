"""A model cut into stages, in one process: what each has, and that together they are the model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny
from rlctl.train.data.batches import grid
from rlctl.train.model import stages
from rlctl.train.model.policy import Policy, load
from rlctl.train.model.stages import Stage, owned, tied
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .test_policy import samples


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Five layers, tied embeddings."""
    folder = tmp_path_factory.mktemp("deep")
    build_tiny(folder, Tiny(hidden_size=64, layers=5, heads=2, mlp=64), max_context=256, seed=0)
    config = config_for(folder, folder)
    return load(str(folder), config, Ranks(config))


def part(policy: Policy, index: int, count: int, tie: bool = True) -> Policy:
    """One stage of a copy."""
    mine: Any = copy.deepcopy(policy)
    if not tie:
        mine.lm.lm_head.weight = torch.nn.Parameter(mine.lm.lm_head.weight.detach() * 2)
    mine.stage = Stage(index, count)
    stages.cut(mine)
    return mine


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(4, 2, [[0, 1], [2, 3]]), (5, 3, [[0, 1], [2, 3], [4]]), (3, 3, [[0], [1], [2]]), (7, 1, [list(range(7))])],
)
def test_layers_are_dealt_evenly_and_the_first_stages_have_what_is_left(
    total: int, count: int, expected: list[list[int]]
) -> None:
    assert [list(Stage(index, count).blocks(total)) for index in range(count)] == expected


@pytest.mark.parametrize("tree", [False, True])
def test_stages_one_after_the_other_are_the_model(policy: Policy, tree: bool) -> None:
    (minibatch,) = grid(samples(), 1, 512, "token_mean", tree=tree)
    micro = minibatch.micros[0]
    states: tuple[torch.Tensor, ...] = ()
    with torch.no_grad():
        for index in range(3):
            answer = part(policy, index, 3)(micro, "value", None, *states)
            states = (answer,)
        expected = policy(micro)
    assert torch.equal(answer.logprobs, expected.logprobs) and torch.equal(answer.entropies, expected.entropies)


@pytest.mark.parametrize("tie", [True, False])
def test_every_parameter_keeps_its_name_and_is_owned_by_one_stage(policy: Policy, tie: bool) -> None:
    parts = [part(policy, index, 3, tie) for index in range(3)]
    names = [name for mine in parts for name in owned(mine)]
    whole = part(policy, 0, 1, tie)
    assert sorted(names) == sorted(name for name, _ in whole.named_parameters())
    assert [tied(mine.lm) is not None for mine in parts] == [tie, False, tie]
    assert all(torch.equal(dict(whole.named_parameters())[n], p) for mine in parts for n, p in owned(mine).items())
    assert {name for name in owned(parts[1]) if "layers" not in name} == set()


def test_the_work_of_a_token_counts_the_parameters_of_all_stages(policy: Policy) -> None:
    assert part(policy, 1, 3).size == policy.size
    assert policy.size.parameters == sum(p.numel() for p in policy.parameters())


def test_stages_and_offloading_to_the_host_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.parallel.pipeline\] and \[train.fsdp.cpu_offload"):
        config_for(tmp_path, tmp_path, train={"parallel": {"pipeline": 2}, "fsdp": {"cpu_offload": True}})
