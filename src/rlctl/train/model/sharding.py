"""A model over the ranks: cut by tensor parallelism, then sharded by FSDP2 on the other sides of the mesh."""

from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from rlctl.config import Config
from rlctl.train.model import tensor
from rlctl.train.model.adapters.quantized import packed
from rlctl.train.ranks import Ranks


def shard(module: Any, config: Config, ranks: Ranks) -> None:
    """FSDP2; `module.lm` is the transformer whose blocks are the units.

    "none" keeps whole weights on each rank: a mesh whose shard side is 1, the same code. One float32 process, or one of
    a stage, needs neither sharding nor casts, so it goes without (the wrapping costs time and changes nothing).
    """
    fsdp = config.train.fsdp
    if ranks.layout.in_stage == 1 and config.model.dtype == "float32" and not fsdp.cpu_offload:
        return
    if ranks.layout.tensor > 1:
        tensor.cut(module, ranks.mesh["tensor"])
    sides = ("shard",) if fsdp.strategy == "full" else ("replicate", "shard")
    compute = getattr(torch, config.model.dtype)
    options: dict[str, Any] = {
        "mesh": ranks.mesh[sides],
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
        "reshard_after_forward": fsdp.reshard_after_forward,
    }
    if codes := {parameter for parameter in module.parameters() if packed(parameter)}:
        options["ignored_params"] = codes  # whole on every rank: they are small and never change
    if fsdp.cpu_offload:
        pinned = fsdp.offload_pin_memory and ranks.device.type == "cuda"
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=pinned)
    blocks = set(getattr(module.lm, "_no_split_modules", None) or [])
    for part in list(module.modules()):
        if type(part).__name__ in blocks:
            fully_shard(part, **options)
    fully_shard(module, **options)
