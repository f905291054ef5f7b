"""Weights, gradients and moments in the host's memory (FSDP2's CPUOffloadPolicy).

Without a GPU the policy is the same and nothing has to travel: what is checked here is that training, export and
checkpoints live with it. `gpu`: that something travels. Those have not been run yet.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from rlctl.config.learning import Optim
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.model.policy import load
from rlctl.train.ranks import Ranks
from rlctl.train.weights import states
from rlctl.train.weights.export import export

from .conftest import config_for
from .running import through_a_checkpoint
from .test_policy import samples, update


def three_steps(model_dir: Path, tmp_path: Path, **more: Any) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    """Losses and norms, exported weights, and (policy, optimizer, ranks)."""
    config = config_for(model_dir, tmp_path, **more)
    ranks = Ranks(config)
    policy = load(str(model_dir), config, ranks)
    optimizer = optim.adamw(policy.parameters(), Optim())
    batch = grid(samples(), 1, 512, "token_mean")[0]
    steps = [update(policy, optimizer, batch, lr=1e-3) for _ in range(3)]
    numbers = [step.sums["loss"] for step in steps] + [step.grad_norm for step in steps]
    return numbers, export(policy, "float32", keep=True), (policy, optimizer, ranks)


@pytest.mark.parametrize("train", [{}, {"lora": {"rank": 4}}, {"memory": {"activation_checkpointing": "selective"}}])
def test_offloading_changes_no_number(train: dict[str, Any], model_dir: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    numbers, weights, _ = three_steps(model_dir, tmp_path, train=train)
    torch.manual_seed(0)
    offloaded, same, (policy, optimizer, ranks) = three_steps(
        model_dir, tmp_path, train={**train, "fsdp": {"cpu_offload": True}}
    )
    try:
        assert all(isinstance(parameter, DTensor) for parameter in policy.parameters()), "FSDP has not taken it over"
        assert offloaded == pytest.approx(numbers, rel=1e-5)
        assert all(torch.allclose(weights[name], same[name], atol=1e-6) for name in weights)
        again = optim.adamw(policy.parameters(), Optim())
        through_a_checkpoint(model_dir, tmp_path, policy, optimizer, again, ranks)
        before, after = (states.moments((policy, one)) for one in (optimizer, again))
        assert all(
            torch.equal(*(m[name][key].full_tensor() for m in (before, after)))
            for name in before
            for key in ("exp_avg", "exp_avg_sq")
        )
    finally:
        ranks.close()


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [True, False])
def test_what_is_offloaded_lies_on_the_host_between_steps(pinned: bool, model_dir: Path, tmp_path: Path) -> None:
    numbers, _, (_, _, ranks) = three_steps(model_dir, tmp_path, deploy={"device": "cuda"})
    ranks.close()
    fsdp = {"cpu_offload": True, "offload_pin_memory": pinned}
    offloaded, _, (policy, optimizer, ranks) = three_steps(
        model_dir, tmp_path, deploy={"device": "cuda"}, train={"fsdp": fsdp}
    )
    try:
        assert offloaded == pytest.approx(numbers, rel=1e-4)
        for parameter in policy.parameters():
            assert parameter.device.type == "cpu" and optimizer.state[parameter]["exp_avg"].device.type == "cpu"
            assert parameter.to_local().is_pinned() == pinned
    finally:
        ranks.close()
