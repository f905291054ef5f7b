"""float16 with a dynamic loss scale: what it saves from underflow and overflow, and how it adapts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rlctl.config.algorithm import Algo
from rlctl.config.learning import Optim
from rlctl.train.data.batches import grid
from rlctl.train.learning import optim, scaling
from rlctl.train.model.policy import Policy, load
from rlctl.train.objective.losses import policy_loss
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .running import through_a_checkpoint
from .test_policy import samples, update


@pytest.fixture
def half(model_dir: Path, tmp_path: Path) -> Iterator[Policy]:
    config = config_for(model_dir, tmp_path, model={"dtype": "float16"})
    ranks = Ranks(config)
    try:
        yield load(str(model_dir), config, ranks)
    finally:
        ranks.close()


def plain(model_dir: Path, tmp_path: Path) -> Policy:
    config = config_for(model_dir, tmp_path)
    return load(str(model_dir), config, Ranks(config))


def small_step(policy: Policy, scaled: bool, factor: float) -> float:
    """The gradient's norm for a loss of `factor` times its size."""

    def loss(a, b, c):
        value, sums = policy_loss(a, b, c, Algo())
        return value * factor, sums

    batch = grid(samples(), 1, 512, "token_mean")[0]
    optimizer = optim.adamw(policy.parameters(), Optim(), scaled=scaled)
    return optim.step(policy, optimizer, batch, loss, 1, 0.0, 1.0).grad_norm


def test_the_scale_doubles_after_a_window_of_finite_steps_and_halves_after_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "WINDOW", 2)
    optimizer = optim.adamw([nn.Parameter(torch.zeros(1))], Optim(), scaled=True)
    found = []
    for finite in (True, True, True, False, True, True, True):
        scaling.adapt(optimizer, finite)
        found.append(scaling.scale_of(optimizer) / 2**16)
    assert found == [1, 2, 2, 1, 1, 2, 2]


def test_an_unscaled_optimizer_stays_unscaled() -> None:
    optimizer = optim.adamw([nn.Parameter(torch.zeros(1))], Optim())
    scaling.adapt(optimizer, finite=False)
    assert scaling.scale_of(optimizer) == 1 and scaling.SCALE not in optimizer.param_groups[0]


def test_float16_learns_as_float32_does(half: Policy, model_dir: Path, tmp_path: Path) -> None:
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    kinds = set()
    half.lm.get_output_embeddings().register_forward_hook(lambda m, i, o: kinds.add(o.dtype))
    batch, whole = grid(samples(), 1, 512, "token_mean")[0], plain(model_dir, tmp_path)
    found = []
    for policy, scaled in ((half, True), (whole, False)):
        optimizer = optim.adamw(policy.parameters(), Optim(), scaled=scaled)
        steps = [update(policy, optimizer, batch, lr=1e-3) for _ in range(3)]
        assert not any(step.skipped for step in steps)
        found.append([step.sums["loss"] for step in steps] + [step.grad_norm for step in steps])
    assert found[0] == pytest.approx(found[1], rel=1e-2)
    assert kinds == {torch.float16}


def test_a_gradient_too_small_for_float16_is_saved_by_the_scale(half: Policy, model_dir: Path, tmp_path: Path) -> None:
    exact = small_step(plain(model_dir, tmp_path), False, 1e-7)
    assert small_step(half, True, 1e-7) == pytest.approx(exact, rel=0.05)
    assert small_step(half, False, 1e-7) < 0.5 * exact


def test_a_scale_that_overflows_skips_steps_until_it_fits(half: Policy, model_dir: Path, tmp_path: Path) -> None:
    batch = grid(samples(), 1, 512, "token_mean")[0]
    optimizer = optim.adamw(half.parameters(), Optim(), scaled=True)
    optimizer.param_groups[0][scaling.SCALE] = 2.0**24
    before = {name: value.detach().clone() for name, value in half.named_parameters()}
    assert update(half, optimizer, batch).skipped
    assert all(torch.equal(before[name], value) for name, value in half.named_parameters())
    skips = 1
    while update(half, optimizer, batch, lr=1e-3).skipped:
        skips += 1
        assert skips < 24
    assert scaling.scale_of(optimizer) == 2.0 ** (24 - skips)


def test_the_scale_is_in_the_checkpoint(half: Policy, model_dir: Path, tmp_path: Path) -> None:
    ranks = Ranks(config_for(model_dir, tmp_path, model={"dtype": "float16"}))
    batch = grid(samples(), 1, 512, "token_mean")[0]
    first, second = (optim.adamw(half.parameters(), Optim(), scaled=True) for _ in range(2))
    first.param_groups[0][scaling.SCALE] = 2.0**10
    update(half, first, batch)
    through_a_checkpoint(model_dir, tmp_path, half, first, second, ranks)
    assert scaling.scale_of(second) == 2.0**10 and second.param_groups[0][scaling.STREAK] == 1
