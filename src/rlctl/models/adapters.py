"""LoRA adapters in files: merged into the weights that they stand on, without peft and without a model.

    W' = cast(float32(cast(W)) + alpha / r * B A)

`cast` is to what trainer and engines compute in, so that float32(cast(W)) is the very weight that the trainer computes
with. The trainer's own export, the engines and `rlctl merge` all merge here: on like processors with the same bits.
Source: arXiv 2106.09685, eq. 3; the files are peft's.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from rlctl.wire.published import ADAPTER, ADAPTER_CONFIG, Base, Unusable, model_files

PREFIX = "base_model.model."
"""What peft puts before the names of modules."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
}
"""Settings of an adapter_config.json with which the formula above is all there is."""


def merge(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """`weight [out, in]`, `a [r, in]`, `b [out, r]` -> `[out, in]` in `dtype`."""
    return (weight.to(dtype).float() + scale * (b.float() @ a.float())).to(dtype)


@dataclass(frozen=True)
class Adapters:
    """What one adapter folder holds."""

    scale: float
    """alpha / r."""
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    """Name of the adapted weight -> A `[r, in]`, B `[out, r]`."""


def named(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors of adapter_model.safetensors."""
    sides = {"lora_A": 0, "lora_B": 1}
    return {
        f"{PREFIX}{name.removesuffix('.weight')}.{side}.weight": pair[number]
        for name, pair in pairs.items()
        for side, number in sides.items()
    }


def read(folder: Path) -> Adapters:
    """The adapters in `folder`; Unusable when they cannot be read, or are of a kind that is not merged here."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / ADAPTER)
        scale = config["lora_alpha"] / config["r"]
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise Unusable(f"{folder} holds no adapters: {type(error).__name__}: {error}") from error
    for key, plain in PLAIN.items():
        if config.get(key, plain[0]) not in plain:
            raise Unusable(f"{folder / ADAPTER_CONFIG}: {key} = {config[key]!r} is not supported")
    pairs = {}
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        other = name.replace(".lora_A.", ".lora_B.")
        if other not in tensors:
            raise Unusable(f"{folder / ADAPTER}: {name} has no {other}")
        plain_name = name.removeprefix(PREFIX).replace(".lora_A.weight", ".weight")
        pairs[plain_name] = tensors.pop(name), tensors.pop(other)
    if tensors:
        raise Unusable(f"{folder / ADAPTER}: {min(tensors)} is neither A nor B of a linear layer")
    return Adapters(scale, pairs)


def stored(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every weight of a model folder, mapped from its files: one at a time in memory."""
    for file in model_files(folder):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  (not a mapping)
                yield name, weights.get_tensor(name)


def merged(adapters: Adapters, base: Base, device: str | torch.device = "cpu") -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of the base in its `dtype`, adapted ones merged on `device`; Unusable when one is not in the base.

    What is computed with them lies on `device`; the others stay where they are read.
    """
    dtype, left = getattr(torch, base.dtype), dict(adapters.pairs)
    for name, weight in stored(Path(base.path)):
        if pair := left.pop(name, None):
            a, b = (side.to(device) for side in pair)
            if (b.shape[0], a.shape[1]) != tuple(weight.shape):
                raise Unusable(f"{name} of {base.path} is {list(weight.shape)}, its adapter {[b.shape[0], a.shape[1]]}")
            yield name, merge(weight.to(device), a, b, adapters.scale, dtype)
        else:
            own = weight.float().to(dtype, copy=True) if weight.is_floating_point() else weight.clone()
            yield name, own  # a copy: a file that is written over must not change what computes with it
    if left:
        raise Unusable(f"{base.path} has no weight {min(left)}, which an adapter is for")
