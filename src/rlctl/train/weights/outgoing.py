"""The policy's weights on their way to a folder: a whole Hugging Face model, or adapters and the name of their base."""

import json
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlctl.train.model.adapters import lora
from rlctl.train.model.policy import Policy
from rlctl.train.ranks import Ranks
from rlctl.train.weights.export import adapters, export
from rlctl.wire.published import ADAPTER, ADAPTER_CONFIG, BASE, WEIGHTS, Base, write_base

Weights = dict[str, torch.Tensor]


class Outgoing:
    """The weights of one moment, gathered from the ranks once, whatever is written from them.

    All ranks make one at the same moment and ask it for the same; only the first is given tensors. They are for use
    before the next optimizer step: on the CPU some are the policy's own.
    """

    def __init__(self, policy: Policy, dtype: str, ranks: Ranks, base: Base | None = None) -> None:
        """`base`: what the adapters stand on, where there are any."""
        self.policy, self.dtype, self.ranks, self.base = policy, dtype, ranks, base

    @cached_property
    def whole(self) -> Weights:
        """Every weight in `dtype`, adapters merged."""
        return export(self.policy, self.dtype, keep=self.ranks.leads)

    @cached_property
    def adapters(self) -> Weights:
        """A and B of every adapted layer, float32, under peft's names."""
        return adapters(self.policy, keep=self.ranks.leads)

    def save_whole(self, weights: Weights, folder: Path) -> list[str]:
        """A folder that `AutoModelForCausalLM.from_pretrained` loads; the files that hold weights."""
        save_hf(self.policy, weights, folder, self.dtype)
        return [WEIGHTS]

    def save_adapters(self, weights: Weights, folder: Path) -> list[str]:
        """A folder that peft loads; the files that say what the model computes, weights first."""
        assert self.base is not None
        save_file(weights, folder / ADAPTER, metadata={"format": "pt"})
        settings = lora.settings(self.policy.lm, self.base.path)
        (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(folder, self.base)
        return [ADAPTER, ADAPTER_CONFIG, BASE]


def save_hf(policy: Policy, weights: Weights, folder: Path, dtype: str) -> None:
    """`weights` with the configuration of the policy, as a Hugging Face folder."""
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = policy.lm.config.to_diff_dict()
    config.pop("quantization_config", None)  # of the trainer, not of `weights`
    config |= {"architectures": [type(policy.lm).__name__], "dtype": dtype, "use_cache": True}
    config["model_type"] = policy.lm.config.model_type
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if policy.lm.can_generate() and policy.lm.generation_config is not None:
        policy.lm.generation_config.save_pretrained(folder)
