"""torch.compile of the transformer blocks: the numbers of the plain computation, or a clear word that it cannot be."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.config.algorithm import Algo
from rlctl.config.learning import Optim
from rlctl.errors import ConfigError
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.model import critic
from rlctl.train.model.policy import load, load_frozen
from rlctl.train.model.tree_models import settle
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .test_blocks import agree, batch_for
from .test_policy import EVERY_LOSS, gradient_of, samples, update

WAYS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "full": {"memory": {"activation_checkpointing": "full"}},
    "selective": {"memory": {"activation_checkpointing": "selective"}},
}


@cache
def module_for(valued: bool, model_dir: Path, way: str) -> torch.nn.Module:
    train = {"prefix_tree": False, "compile": way != "plain", **WAYS.get(way, {})}
    config = config_for(model_dir, model_dir, train=train)
    if not valued:
        return load(str(model_dir), config, Ranks(config))
    module = critic.load(config, str(model_dir), Ranks(config))
    torch.nn.init.constant_(module.head.weight, 0.1)
    return module


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EVERY_LOSS)
def test_every_loss_is_the_same_compiled(name: str, model_dir: Path) -> None:
    algo = Algo(**EVERY_LOSS[name])
    config = config_for(model_dir, model_dir, train={"prefix_tree": False})
    other = load_frozen(str(model_dir), config, Ranks(config))
    with torch.no_grad():
        other.lm.get_output_embeddings().weight.mul_(1.5)
    cut = {"micro_tokens": 512}
    plain = gradient_of(module_for(algo.needs_critic, model_dir, "plain"), algo, batch_for(algo), cut, other)
    for way in WAYS:
        lean = module_for(algo.needs_critic, model_dir, way)
        agree(plain, gradient_of(lean, algo, batch_for(algo), cut, other))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_blocks_that_fsdp_has_taken_over_compile_too(model_dir: Path, tmp_path: Path) -> None:
    settings = {"prefix_tree": False, "fsdp": {"cpu_offload": True}}
    batch, found = grid(samples(), 1, 512, "token_mean")[0], []
    for compiled in (False, True):
        config = config_for(model_dir, tmp_path, train={**settings, "compile": compiled, **WAYS["selective"]})
        ranks = Ranks(config)
        try:
            policy = load(str(model_dir), config, ranks)
            steps = [update(policy, optim.adamw(policy.parameters(), Optim()), batch, 1e-3) for _ in range(3)]
        finally:
            ranks.close()
        found.append([step.sums["loss"] for step in steps] + [step.grad_norm for step in steps])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_blocks_share_one_compiled_function_for_rows_of_any_length(model_dir: Path) -> None:
    from torch._dynamo.utils import counters

    module = module_for(False, model_dir, "compiled")
    micros = grid(samples(), 1, 256, "token_mean")[0].micros
    for micro in micros[:2]:
        module(micro).logprobs.sum().backward()
    counters.clear()
    for micro in micros:
        if micro.token_ids.shape[0] > 1:
            module(micro).logprobs.sum().backward()
    module.zero_grad()  # other tests have the same module
    assert counters["stats"].get("unique_graphs", 0) == 0, "compiled anew"
    assert not counters["graph_break"]


@pytest.mark.slow
def test_without_a_compiler_there_is_a_config_error_that_says_what_to_install() -> None:
    code = """
import torch
from rlctl.config.learning import Optim
from rlctl.errors import ConfigError
from rlctl.train.model.blocks import compile_blocks
try:
    compile_blocks(torch.nn.Module(), torch.device("cpu"))
except ConfigError as error:
    print(error)
"""
    environment = {**os.environ, "CXX": "/nonexistent/compiler"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "train.compile" in done.stdout and "C++ compiler" in done.stdout


@pytest.mark.parametrize("tree", ["auto", True])
def test_compiled_blocks_do_without_forests(tree: bool | str, model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, train={"compile": True, "prefix_tree": tree})
    if tree == "auto":
        assert settle(config, torch.device("cpu")).train.prefix_tree is False
        return
    with pytest.raises(ConfigError, match=r"train\.compile"):
        settle(config, torch.device("cpu"))
