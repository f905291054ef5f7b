"""The transformer blocks of a model, and how their forward pass is run: some activations computed twice, compiled.

Both replace `block.forward`, so that names, classes and hooks (which sharding brings) stay as they are, outside:

    hooks of the block --> [compiled] --> [checkpointed] --> forward
"""

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from rlctl.config.learning import Memory
from rlctl.errors import ConfigError

KEPT = {
    "aten::mm",
    "aten::addmm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flex_attention",
}
"""Operations whose outputs selective checkpointing keeps. Not `bmm`: the scores of eager attention are quadratic."""


def blocks_of(lm: nn.Module) -> list[nn.Module]:
    """The blocks in their order; ConfigError for a model that does not name them."""
    names = set(getattr(lm, "_no_split_modules", None) or ())
    blocks = [module for module in lm.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigError(f"{type(lm).__name__} does not say which modules are its transformer blocks")
    return blocks


def checkpoint_blocks(lm: nn.Module, memory: Memory) -> None:
    """Keep less of the first blocks' activations than their backward pass needs, and compute the rest anew there.

    full: their inputs only. selective: also the outputs of matrix products and attention, so that only what is cheap is
    computed twice. Source: Korthikanti et al., Reducing Activation Recomputation, arXiv 2205.05198, section 5.
    """
    kind = memory.activation_checkpointing
    if not kind:
        return
    blocks = blocks_of(lm)
    if memory.checkpoint_layers > len(blocks):
        raise ConfigError(
            f"train.memory.checkpoint_layers = {memory.checkpoint_layers}, but the model has {len(blocks)} layers"
        )
    forward = _selective if kind == "selective" else _full
    for block in blocks[: memory.checkpoint_layers or None]:
        block.forward = MethodType(forward, block)


def compile_blocks(lm: nn.Module, device: torch.device) -> None:
    """Let torch.compile make one function of every block's forward pass, checkpointed or not, for rows of any length.

    ConfigError where there is no compiler for `device`.
    """
    if why := _no_compiler(device):
        raise ConfigError(f"train.compile = true cannot be used: {why}")
    for block in blocks_of(lm):
        block.forward = torch.compile(block.forward, dynamic=True)


def _no_compiler(device: torch.device) -> str:
    if device.type != "cpu":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "there is no Triton for this GPU (pip install triton)"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "on the CPU it needs a C++ compiler (g++ or clang++; the variable CXX names another), and there is none"
    return ""


def _full(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # The function of the class, not of this block, so that what is compiled for one block serves all. No dropout is
    # left (see `policy.prepare`), hence no random state to restore.
    return checkpoint(partial(type(self).forward, self), *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _selective(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _full(self, *args, context_fn=partial(create_selective_checkpoint_contexts, _policy), **kwargs)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation.name() in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
