"""Attention over a forest: what plain causal attention gives each sequence alone, in value and gradient."""

import numpy as np
import pytest
import torch

from rlctl.train.data.tree import Forest, grow
from rlctl.train.model.tree_attention import ByNodes, Node, masked
from rlctl.train.model.tree_flex import attend, blocks_of

SCALE = 0.3


def forest(seed: int = 0) -> Forest:
    """One tree that branches at two depths, with a sequence that ends where others go on; and one sequence alone."""
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.integers(0, 50, n)  # noqa: E731
    prompt, turn = draw(70), draw(9)
    deep = [np.concatenate([prompt, turn, draw(n)]) for n in (3, 40, 1)]
    ids = [*deep, np.concatenate([prompt, turn]), np.concatenate([prompt, draw(33)]), draw(25)]
    return grow(ids, block=1)


def nodes_of(made: Forest) -> list[Node]:
    return [tuple(node) for node in made.nodes.tolist()]


def tensors(length: int, dtype: torch.dtype = torch.float32, heads: tuple[int, ...] = (2, 2, 2)) -> list[torch.Tensor]:
    """Query, key, value `[1, H, T, d]`, laid out as a model's projections are."""
    torch.manual_seed(1)
    return [torch.randn(1, length, h, 16).to(dtype).transpose(1, 2).requires_grad_() for h in heads]


def alone(
    made: Forest, inputs: list[torch.Tensor], weight: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs per sequence by plain attention, and the gradient of `sum over sequences of (output * weight)`."""
    outputs, loss = [], torch.zeros(())
    for place in made.places:
        at = torch.from_numpy(place)
        q, k, v = (x[:, :, at].double() for x in inputs)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)
        outputs.append(out)
        loss = loss + (out * weight[:, :, at]).sum()
    return outputs, list(torch.autograd.grad(loss, inputs))


def often(made: Forest) -> torch.Tensor:
    """In how many sequences each token stands."""
    counts = np.bincount(np.concatenate(made.places), minlength=len(made.token_ids))
    return torch.from_numpy(counts).float()[None, None, :, None]


@pytest.mark.parametrize("way", ["by nodes", "masked"])
def test_outputs_and_gradients_are_those_of_every_sequence_alone(way: str) -> None:
    made = forest()
    inputs = tensors(len(made.token_ids))
    weight = torch.randn(inputs[0].shape)
    expected, gradients = alone(made, inputs, weight)
    function = ByNodes.apply if way == "by nodes" else masked
    out = function(*inputs, nodes_of(made), SCALE)
    for place, one in zip(made.places, expected, strict=True):
        assert torch.allclose(out[:, :, place].double(), one, atol=2e-6)
    found = torch.autograd.grad((out * weight * often(made)).sum(), inputs)
    for mine, theirs in zip(found, gradients, strict=True):
        assert torch.linalg.norm(mine - theirs) < 1e-6 * torch.linalg.norm(theirs)


def test_bfloat16_loses_no_more_than_one_kernel_does() -> None:
    made = forest()
    exact, rough = tensors(len(made.token_ids)), tensors(len(made.token_ids), torch.bfloat16)
    out, other = ByNodes.apply(*exact, nodes_of(made), SCALE), ByNodes.apply(*rough, nodes_of(made), SCALE)
    plain = masked(*rough, nodes_of(made), SCALE)
    assert other.dtype == torch.bfloat16
    assert (other.float() - out).norm() < 1.05 * (plain.float() - out).norm()


@pytest.mark.parametrize("heads", [(2, 2, 2), (4, 2, 2)])
def test_the_mask_of_flex_attention_is_the_same_tree(heads: tuple[int, ...]) -> None:
    made = forest()
    query, key, value = (x.detach() for x in tensors(len(made.token_ids), heads=heads))
    out = attend(query, key, value, blocks_of(torch.from_numpy(made.nodes)), SCALE)
    shared = [x.repeat_interleave(heads[0] // heads[1], 1) for x in (key, value)]
    assert torch.allclose(out, masked(query, *shared, nodes_of(made), SCALE), atol=1e-6)
