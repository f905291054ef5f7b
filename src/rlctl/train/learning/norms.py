"""Gradient norms: of the whole, and layer by layer, where a gradient vanishes, explodes or is not a number."""

from typing import Any

import torch
from torch import nn

from rlctl.train.model.policy import whole
from rlctl.train.model.stages import owned


def total_norm(module: Any) -> torch.Tensor:
    """2-norm of the gradient, over all ranks and stages (all of them must call it)."""
    gradients = [parameter.grad for parameter in owned(module).values() if parameter.grad is not None]
    norm: torch.Tensor = module.stage.norm(whole(nn.utils.get_total_norm(gradients)))
    return norm


def layer_of(parameter: str) -> str:
    """The layer that a parameter's name belongs to: up to the number of its block, else the module that holds it.

    Example: `lm.model.layers.3.mlp.up_proj.weight` -> `model.layers.3`, `lm.model.norm.weight` -> `model.norm`.
    """
    parts = parameter.removeprefix("lm.").split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1])


def layer_norms(module: nn.Module) -> dict[str, float]:
    """2-norm of the gradient of every layer of this stage, over its ranks (all of them must call it).

    One transfer from the device.
    """
    gradients: dict[str, list[torch.Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients.setdefault(layer_of(name), []).append(parameter.grad)
    if not gradients:
        return {}
    norms = torch.stack([whole(nn.utils.get_total_norm(group)) for group in gradients.values()])
    return dict(zip(gradients, norms.tolist(), strict=True))
