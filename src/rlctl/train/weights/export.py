"""The policy's weights as they leave the trainer: whole with adapters merged, or the adapters alone."""

import torch

from rlctl.models.adapters import merge, named
from rlctl.train.model.adapters import lora
from rlctl.train.model.adapters.quantized import packed, unpacked
from rlctl.train.model.policy import Policy, whole
from rlctl.train.model.stages import owned


def export(policy: Policy, dtype: str, keep: bool, merged: bool = True) -> dict[str, torch.Tensor]:
    """Weights under their Hugging Face names, on the CPU, in `dtype`, tied copies once.

    All ranks must call it; only those with `keep` get anything, of several stages the first (`keep` then is true for
    one rank of each: `Ranks.leads`). LoRA is merged into a copy, so that the frozen weights do not drift; without
    `merged` these are given as they are.
    """
    target = getattr(torch, dtype)
    layers = lora.layers(policy) if merged else {}
    state = policy.state_dict()  # first: it brings FSDP's parameters back to their shards
    weights: dict[str, torch.Tensor] = {}
    for name, own in [*owned(policy).items(), *policy.named_buffers()]:  # of tied ones the first
        if name not in state or ".lora_" in name:
            continue
        full = unpacked(own) if isinstance(own, torch.nn.Parameter) and packed(own) else whole(state[name].detach())
        layer = name.removesuffix(".base_layer.weight")
        if layer in layers:
            a, b = (whole(side) for side in lora.pair(state, layer))
            full = merge(full, a, b, layers[layer].scaling[lora.NAME], target)
        if keep:
            plain = name.removeprefix("lm.").replace(".base_layer.", ".")
            weights[plain] = full.to("cpu", target if full.is_floating_point() else full.dtype).contiguous()
    return policy.stage.together(weights) if keep else {}


def adapters(policy: Policy, keep: bool) -> dict[str, torch.Tensor]:
    """A `[r, in]` and B `[out, r]` of every adapted layer under peft's names, float32, on the CPU; as `export`."""
    pairs, state = {}, policy.state_dict()
    for name in lora.layers(policy):
        a, b = (whole(side).to("cpu").contiguous() for side in lora.pair(state, name))
        pairs[f"{name.removeprefix('lm.')}.weight"] = a, b
    return policy.stage.together(named(pairs)) if keep else {}
