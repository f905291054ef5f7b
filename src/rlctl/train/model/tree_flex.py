"""The tree mask for FlexAttention on a GPU. Not yet run on one: the tests compare its forward pass on the CPU.

FlexAttention skips the blocks of 128 x 128 scores that the mask leaves empty, and computes the others with it.
Source: torch.nn.attention.flex_attention.
"""

from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Blocks = BlockMask


def blocks_of(nodes: torch.Tensor) -> Blocks:
    """The mask of a row: nodes int64 `[n, 3]` (start, stop, end; see `data.tree`), on the row's device."""
    ends = nodes[:, 2].repeat_interleave(nodes[:, 1] - nodes[:, 0])

    def sees(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < ends[key])

    length = len(ends)
    return create_block_mask(sees, None, None, length, length, device=ends.device)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: Blocks, scale: float) -> torch.Tensor:
    """query `[1, H, T, d]`, key and value `[1, H_kv, T, d]` -> `[1, H, T, d]`."""
    run = _compiled() if query.is_cuda else flex_attention
    return run(query, key, value, block_mask=blocks, scale=scale, enable_gqa=query.shape[1] != key.shape[1])


@cache
def _compiled() -> Any:
    """Only the compiled form is fused; row lengths differ from pass to pass."""
    return torch.compile(flex_attention, dynamic=True)
