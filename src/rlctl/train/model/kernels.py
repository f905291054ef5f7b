"""Liger's fused Triton kernels (RMSNorm, rotary embedding, SwiGLU) in place of a model's own. Not yet run on a GPU."""

import logging
from typing import Any, Literal

import torch

from rlctl.errors import ConfigError

log = logging.getLogger(__name__)

OURS = {"cross_entropy": False, "fused_linear_cross_entropy": False}
"""Log-probabilities are made here (`model.logits`), not by the model."""


def use_liger(lm: Any, wanted: bool | Literal["auto"], device: torch.device, tensor: int = 1) -> None:
    """Change the model in place. "auto": where it can be; True: ConfigError where it cannot.

    `tensor`: ranks that each hold a slice of the weights.
    """
    if not wanted:
        return
    if why := why_not(lm.config.model_type, device, tensor):
        if wanted is True:
            raise ConfigError(f"train.liger = true cannot be used: {why}")
        log.info("train.liger is off: %s", why)
        return
    from transformers.integrations.liger import apply_liger_kernel

    apply_liger_kernel(lm, OURS)


def why_not(kind: str, device: torch.device, tensor: int = 1) -> str:
    """Why models of the transformers type `kind` cannot have the kernels on `device`; "" if they can."""
    if tensor > 1:
        return "its kernels do not take the distributed tensors of train.parallel.tensor"
    if device.type != "cuda":
        return "its kernels are for a GPU"
    from transformers.utils import is_liger_kernel_available

    if not is_liger_kernel_available():
        return "the package is not installed (pip install liger-kernel)"
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    return "" if kind in MODEL_TYPE_TO_APPLY_LIGER_FN else f"it has no kernels for models of the type {kind}"
