"""Attention over a forest of sequences (`data.tree`), as a transformers attention implementation.

The model runs once over the row `[1, T]`; only attention must know the tree. Three ways to the same numbers:

- CPU: of every node, `causal(its queries, its keys)` and `full(its descendants' queries, its keys)`, both on contiguous
  slices, merged by their log-sum-exp. No mask, no padding, no copy of shared keys, and no score that is not needed.
- elsewhere: FlexAttention with a block mask (`tree_flex`).
- `masked`: SDPA with a dense `[T, T]` mask, for heads that the CPU kernel does not take; the definition of the others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rlctl.train.model.tree_flex import Blocks, attend

NAME = "rlctl_tree"
"""As transformers knows it; without a tree it is SDPA."""

Node = tuple[int, int, int]
"""Start, stop, end: see `data.tree`."""


@dataclass(frozen=True)
class Tree:
    """What attention must know of a row: handed through the model's forward pass."""

    nodes: list[Node]
    blocks: Blocks | None = None
    """For FlexAttention; None on the CPU."""


def register(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make an attention, which takes the masks of SDPA, known to transformers; again is no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    tree: Tree | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: query `[1, H, T, d]`, key and value `[1, H_kv, T, d]` -> `[1, T, H, d]`."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **rest)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree.blocks is not None:
        return attend(query, key, value, tree.blocks, scale).transpose(1, 2), None
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    same = query.shape[-1] == value.shape[-1]
    out = ByNodes.apply(query, key, value, tree.nodes, scale) if same else masked(query, key, value, tree.nodes, scale)
    return out.transpose(1, 2), None


def masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, nodes: list[Node], scale: float
) -> torch.Tensor:
    """`[1, H, T, d]`; key k is visible to query q when `k <= q < end of k's node`."""
    at = torch.arange(query.shape[2], device=query.device)
    sizes = torch.tensor([stop - start for start, stop, _ in nodes], device=query.device)
    ends = torch.tensor([end for _, _, end in nodes], device=query.device).repeat_interleave(sizes)
    sees = (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])
    return scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scale)


class ByNodes(torch.autograd.Function):
    """Exact attention node by node: `[1, H, T, d]` three times -> `[1, H, T, d]`.

    Let part i of a query's keys give the output o_i and the log-sum-exp l_i. Then `l = log sum_i exp l_i` and
    `o = sum_i exp(l_i - l) o_i`. Backward: `dS = P (dO V^T - rowsum(dO O))` with `P = exp(S - l)`, so with the whole o
    and l in the place of its own a part's backward kernel gives that part of the gradient. Source: FlashAttention-2,
    arXiv 2307.08691, sections 2.3 and 3.1.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, nodes: list[Node], scale: float
    ) -> torch.Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        _, heads, length, width = query.shape
        out = query.new_empty(1, length, heads, width, dtype=torch.float32).transpose(1, 2)
        total = query.new_empty(1, length, heads, dtype=torch.float32).transpose(1, 2)
        for rows, keys, causal, first in _calls(nodes):
            part, logs = kernel(query[:, :, rows], key[:, :, keys], value[:, :, keys], 0.0, causal, scale=scale)
            so_far, logs_so_far = out[:, :, rows], total[:, :, rows]
            if first:
                so_far.copy_(part)
                logs_so_far.copy_(logs)
            else:
                so_far.lerp_(part.float(), torch.sigmoid(logs - logs_so_far)[..., None])
                logs_so_far.copy_(torch.logaddexp(logs_so_far, logs))
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.nodes, ctx.scale = nodes, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query, key, value, out, total = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        (gradient,) = gradients
        sums = [torch.empty_like(x, dtype=torch.float32) for x in (query, key, value)]
        for rows, keys, causal, first in _calls(ctx.nodes):
            q, k, v = query[:, :, rows], key[:, :, keys], value[:, :, keys]
            g, o, logs = gradient[:, :, rows], out[:, :, rows], total[:, :, rows]
            parts = kernel(g, q, k, v, o, logs, 0.0, causal, scale=ctx.scale)
            # The first to reach a query is its root, the first to reach a key is its own node.
            for whole, part, where, new in zip(sums, parts, (rows, keys, keys), (first, causal, causal), strict=True):
                so_far = whole[:, :, where]
                so_far.copy_(part) if new else so_far.add_(part)
        return (*(whole.to(query.dtype) for whole in sums), None, None)  # type: ignore[return-value]


def _calls(nodes: list[Node]) -> Iterator[tuple[slice, slice, bool, bool]]:
    """Queries, keys, whether causal, and whether these are the first keys that these queries meet."""
    reached = 0
    for start, stop, end in nodes:
        root = start >= reached
        reached = max(reached, end)
        yield slice(start, stop), slice(start, stop), True, root
        if end > stop:
            yield slice(stop, end), slice(start, stop), False, root
