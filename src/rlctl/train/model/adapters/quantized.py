"""QLoRA: frozen linear layers in 4 bits through bitsandbytes, with adapters in float32 beside them.

A weight is a block of 4-bit codes and a scale per block; a layer makes its weight from them whenever it computes. What
the model computes with is therefore not the weight in the file but the one that the codes stand for: that one is
exported, so that engines sample from what the trainer trains. Source: arXiv 2305.14314, section 3.
"""

import importlib.util
from typing import Any

import torch
from torch import nn

from rlctl.errors import ConfigError


def settings(kind: str, dtype: str) -> Any:
    """transformers' settings for `kind` (nf4, fp4), computing in `dtype`; ConfigError without bitsandbytes."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f'train.lora.quantize = "{kind}" needs bitsandbytes: pip install "rlctl[qlora]"')
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )


def packed(parameter: nn.Parameter) -> bool:
    """Whether it holds codes instead of numbers."""
    return not parameter.is_floating_point()


def numbers(parameter: nn.Parameter) -> int:
    """How many it stands for: two 4-bit codes are one byte."""
    return parameter.numel() * (2 * parameter.element_size() if packed(parameter) else 1)


def unpacked(parameter: Any) -> torch.Tensor:
    """The float32 weight that the codes stand for."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state).float()
