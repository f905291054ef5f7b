"""Log-probabilities and entropies in blocks: against torch's own distributions, in value and gradient."""

import pytest
import torch

from rlctl.train.model import logits as module
from rlctl.train.model.logits import score


def inputs(rows: int = 7, words: int = 11) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    z = torch.randn(rows, words, dtype=torch.float64, requires_grad=True)
    return z, torch.randint(0, words, (rows,)), torch.rand(rows, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("block", [1, 30, 10**6])
def test_values_and_gradients_are_those_of_the_distribution_whatever_the_block(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    z, targets, warmth = inputs()
    reference = torch.distributions.Categorical(logits=z / warmth[:, None])
    expected = (reference.log_prob(targets), reference.entropy())
    found = score(z, targets, warmth, "grad")
    weights = torch.randn(2, 7, dtype=torch.float64)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)
    (gradient,) = torch.autograd.grad((torch.stack(found) * weights).sum(), z)
    (other,) = torch.autograd.grad((torch.stack(expected) * weights).sum(), z)
    assert torch.allclose(gradient, other, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    z, targets, warmth = inputs(3, 5)
    assert torch.autograd.gradcheck(lambda x: score(x, targets, warmth, "grad"), (z,))


def test_entropy_costs_a_gradient_only_when_asked_for() -> None:
    z, targets, warmth = inputs()
    logprobs, entropies = score(z, targets, warmth, "value")
    assert logprobs.requires_grad and not entropies.requires_grad
    assert torch.equal(entropies, score(z, targets, warmth, "grad")[1])
    assert not score(z, targets, warmth)[1].any()


def test_half_precision_is_summed_in_float32_and_its_gradient_comes_back_in_half() -> None:
    z, targets, warmth = inputs(4, 1000)
    half = z.detach().to(torch.bfloat16).requires_grad_()
    logprobs, _ = score(half, targets, warmth.float())
    exact, _ = score(half.detach().float(), targets, warmth.float())
    assert logprobs.dtype == torch.float32 and torch.equal(logprobs, exact)
    logprobs.sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.bfloat16
