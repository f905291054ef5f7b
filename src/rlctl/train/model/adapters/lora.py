"""LoRA through peft: two small matrices beside a frozen linear layer, `W x + alpha / r * B A x`.

Source: arXiv 2106.09685.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rlctl.config.learning import Lora
from rlctl.errors import ConfigError

NAME = "default"
"""Of the one adapter, in peft's words."""
KEY = "train.lora.target_modules"


def add(lm: Any, lora: Lora) -> None:
    """Freeze `lm` and put adapters beside its layers; ConfigError where what they learn could not be merged."""
    import peft

    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=lora.target_modules,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        peft.inject_adapter_in_model(settings, lm, adapter_name=NAME)
    except ValueError as error:
        raise ConfigError(f"{KEY} = {lora.target_modules!r}: {error}") from error
    names: dict[int, list[str]] = {}
    for name, parameter in lm.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameter.requires_grad_("lora_" in name)
    for name, layer in layers(lm).items():
        if not isinstance(layer.base_layer, nn.Linear):
            raise ConfigError(
                f"{KEY}: {name} is a {type(layer.base_layer).__name__}; only linear layers can be adapted"
            )
        if len(same := names[id(layer.base_layer.weight)]) > 1:
            raise ConfigError(f"{KEY}: {name} shares its weight with {same[0]}, so an adapter for it cannot be merged")


def layers(module: nn.Module) -> dict[str, Any]:
    """Name -> adapted layer (peft's): it has `base_layer`, `lora_A`, `lora_B` and `scaling`."""
    return {name: part for name, part in module.named_modules() if hasattr(part, "lora_A")}


def settings(lm: Any, base: str) -> dict[str, Any]:
    """What peft's adapter_config.json says of the adapters in `lm`, which stand on the model folder `base`."""
    values: dict[str, Any] = lm.peft_config[NAME].to_dict()
    values = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
    return values | {"base_model_name_or_path": base, "inference_mode": True}


def pair(state: Mapping[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A `[r, in]` and B `[out, r]` of the layer `name`, out of a state_dict: possibly sharded."""
    a, b = (state[f"{name}.lora_{side}.{NAME}.weight"].detach() for side in "AB")
    return a, b
