"""The exact state of what is trained, as trees of tensors of which every rank holds its own shards.

Written and read through torch.distributed.checkpoint: each rank writes what it holds and reads what it needs, so a
state can be read back by any number of ranks, however they shard.
"""

from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.utils._pytree import tree_map

from rlctl.errors import RlctlError

Tree = dict[str, Any]
"""Nested names -> tensor, DTensor where it is sharded."""
Trained = tuple[nn.Module, torch.optim.Optimizer]


def parameters(module: nn.Module, frozen: bool = False) -> Tree:
    """The trained parameters (`frozen`: all of them) by name, live: what is read into them is what the module has."""
    wanted = {name for name, parameter in module.named_parameters() if frozen or parameter.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name in wanted}


def moments(trained: Trained) -> Tree:
    """Parameter name -> the optimizer's tensors for it; zeros, as they are to begin with, before the first step."""
    module, optimizer = trained
    fresh = not optimizer.state
    state = cast(Tree, get_optimizer_state_dict(module, optimizer)["state"])
    if fresh:  # asking made them by a step that changes no weight, but counts
        for tensors in optimizer.state.values():
            tensors["step"].zero_()
    return state


def student(trained: Trained) -> Tree:
    return {"parameters": parameters(trained[0]), "optimizer": moments(trained)}


def staged(tree: Tree) -> Tree:
    """Copies on the CPU, which further training does not change."""
    copied: Tree = tree_map(lambda value: value.detach().to("cpu", copy=True), tree)
    return copied


def write(tree: Tree, folder: Path, group: dist.ProcessGroup) -> None:
    """Every rank of `group` calls it and returns when all have written and synced their part."""
    dcp.save(tree, storage_writer=dcp.FileSystemWriter(folder), process_group=group)


def check(folder: Path) -> None:
    """RlctlError unless every rank's file is there."""
    if not (folder / ".metadata").exists():
        raise RlctlError(
            f"{folder} holds no state of a trainer; begin a new run from the model in hf/ beside it "
            "(`rlctl merge` makes it of adapters)"
        )
    names = {info.relative_path for info in dcp.FileSystemReader(folder).read_metadata().storage_data.values()}
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise RlctlError(
            f"{folder} lacks {', '.join(missing)}; run.dir must be on a file system that all trainer processes share"
        )


def read(tree: Tree, folder: Path, group: dist.ProcessGroup) -> None:
    """Fill the tensors of `tree` in place; RlctlError when the folder holds something else."""
    check(folder)
    try:
        dcp.load(tree, storage_reader=dcp.FileSystemReader(folder), process_group=group)
    except CheckpointException as error:
        causes = "; ".join(sorted({str(cause[0]).strip().splitlines()[-1] for cause in error.failures.values()}))
        raise RlctlError(
            f"{folder} does not hold the state that this configuration trains ({causes}); go on with the one it was "
            "written by, or begin a new run from the model in hf/ (`rlctl merge` makes it of adapters)"
        ) from error


def scalars(trained: Trained) -> list[dict[str, Any]]:
    """What every parameter group has beyond the optimizer's settings: a loss scale."""
    optimizer = trained[1]
    settings = {"params", *optimizer.defaults}
    return [{name: group[name] for name in group if name not in settings} for group in optimizer.param_groups]


def put_scalars(trained: Trained, saved: list[dict[str, Any]]) -> None:
    for group, values in zip(trained[1].param_groups, saved, strict=True):
        group.update(values)


def put_moments(trained: Trained, state: Tree) -> None:
    """The optimizer's tensors from `state`; its settings stay those of the configuration."""
    module, optimizer = trained
    whole = get_optimizer_state_dict(module, optimizer)
    set_optimizer_state_dict(module, optimizer, optim_state_dict={**whole, "state": state})
