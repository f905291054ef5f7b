"""Two real ranks (torchrun, gloo, FSDP2) on forests give the loss and gradient of one rank without, for every loss.

Under torchrun this file is the program: it writes, on rank 0, what it found.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from rlctl.config.algorithm import Algo
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim
from rlctl.train.learning.optim import Extras
from rlctl.train.model import critic
from rlctl.train.model.policy import LOGITS, load, load_frozen, whole
from rlctl.train.objective.losses import policy_loss, value_loss
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .test_policy import EVERY_LOSS, with_columns

ROOT = Path(__file__).parents[2]


Found = dict[str, tuple[float, torch.Tensor]]


def measured(
    model_dir: Path,
    ranks: Ranks,
    cut: dict[str, Any],
    train: dict[str, Any] | None = None,
    losses: Iterable[str] = EVERY_LOSS,
) -> Found:
    """Loss and gradient (in the order of the parameters' names) of these losses, on rank 0; `cut`: of `grid`."""
    config = config_for(model_dir, model_dir, train=train or {})
    torch.manual_seed(0)
    policy, other = (make(str(model_dir), config, ranks) for make in (load, load_frozen))
    valued = critic.load(config, str(model_dir), ranks)
    other.chunk = 0
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
        for parameter in other.parameters():
            parameter.mul_(1.1)
        if valued.stage.last:
            valued.head.weight.copy_(torch.full_like(valued.head.weight, 0.1))
    found = {}
    for name in losses:
        algo = Algo(**EVERY_LOSS[name])
        module = valued if algo.needs_critic else policy
        sums, gradient = one_step(module, algo, other, ranks, cut)
        parts = ranks.gather(gradient) or [gradient]
        whole_gradient = {name: part for stage in parts for name, part in stage.items()}
        total = ranks.add_up(sums)
        if ranks.first:
            found[name] = total["loss"], torch.cat([whole_gradient[name] for name in sorted(whole_gradient)])
    return found


def one_step(
    module: torch.nn.Module, algo: Algo, other: Any, ranks: Ranks, cut: dict[str, Any]
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    batch = with_columns()
    if algo.old == "interpolate":
        batch = [replace(s, columns={"blend": np.full(s.trainable, 0.5, np.float32)}) for s in batch]
    layout = ranks.layout
    mine = grid(batch, layout.data, 128, algo.aggregation, length=50, **cut)[layout.data_place(ranks.rank)]
    exact = algo.kl.coef and algo.kl.kind == "full"
    extras = Extras(entropy="grad", reference=partial(compared, other) if exact else None)
    loss = lambda a, b, t: value_loss(a, t, 0.2, 1.0) if algo.needs_critic else policy_loss(a, b, t, algo)  # noqa: E731
    seen: dict[str, torch.Tensor] = {}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    gradients = lambda *_: seen.update(  # noqa: E731
        {name: whole(p.grad).flatten().clone() for name, p in module.named_parameters() if p.grad is not None}
    )
    optimizer.register_step_pre_hook(gradients)
    update = optim.step(module, optimizer, mine, loss, layout.averaged, 0.0, 1e9, extras)
    return update.sums, seen


@torch.no_grad()
def compared(other: Any, micro: Any, *states: torch.Tensor) -> torch.Tensor:
    """Logits of the model to compare with, or states for its next stage."""
    found: torch.Tensor = other(micro, LOGITS, None, *states)
    return found


FOREST = {"tree": True}
LEAN = {"activation_checkpointing": True, "logit_chunk": 7}


def main(model_dir: Path, out: Path) -> None:
    torch.set_num_threads(1)
    config = config_for(model_dir, model_dir)
    ranks = Ranks(config)
    try:
        found = {
            "forests": measured(model_dir, ranks, FOREST),
            "lean forests": measured(model_dir, ranks, FOREST, {"memory": LEAN}),
        }
        if ranks.first:
            torch.save(found, out)
    finally:
        ranks.close()


def launched(program: str, ranks: int, out: Path, *args: str) -> dict[str, Any]:
    """What rank 0 of this module, run by torchrun, saved to `out`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
    command = [sys.executable, *launcher, str(ranks), "-m", program, *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(torch.load(out))


@pytest.fixture(scope="module")
def two(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("ranks") / "found.pt"
    return launched("tests.train.test_tree_ranks", 2, out, str(model_dir), str(out))


@pytest.fixture(scope="module")
def one(model_dir: Path) -> dict[str, Any]:
    return measured(model_dir, Ranks(config_for(model_dir, model_dir)), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("way", ["forests", "lean forests"])
def test_two_ranks_on_forests_are_one_rank_on_rows(
    way: str, name: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    (loss, gradient), (other, other_gradient) = one[name], two[way][name]
    assert other == pytest.approx(loss, rel=1e-5)
    assert torch.linalg.norm(gradient) > 0
    assert torch.linalg.norm(other_gradient - gradient) < 1e-5 * torch.linalg.norm(gradient)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
