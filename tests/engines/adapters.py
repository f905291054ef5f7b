"""Adapters published as the trainer publishes them, but made, saved and merged by peft."""

from pathlib import Path
from typing import Any

import peft
import torch

from rlctl.models.load import load_policy
from rlctl.wire.published import Base, announce, sha256, write_base


def publish_adapters(base: Path, folder: Path, version: int, seed: int) -> tuple[str, Any]:
    """Random adapters for the model in `base`: the checksum, and the model that they make of it."""
    torch.manual_seed(seed)
    settings = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(load_policy(str(base)), settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    write_base(folder, Base(str(base), {"model.safetensors": sha256(base / "model.safetensors")}, "float32"))
    files = ["adapter_model.safetensors", "adapter_config.json", "base.json"]
    return announce(folder, version, files), model.merge_and_unload().eval()
