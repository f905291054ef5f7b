"""The processes of one trainer: torchrun's ranks, or the one process there is without torchrun.

Tensors of the model travel over nccl (CUDA) or gloo (CPU); what is not a tensor travels over a gloo group of its own,
whose waits are unbounded, because rank 0 may wait hours for a batch. A rank that dies closes its sockets, which ends
the others.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlctl.config import Config
from rlctl.train.layout import Layout, layout_of
from rlctl.train.objective.tokens import add_up

FOREVER = timedelta(days=30)


class Ranks:
    """This process among its peers; every method is a no-op or the identity when there is only one.

    Ranks with the same place along `data` share their micro-batches; one of them speaks for all (see `layout`).
    """

    def __init__(self, config: Config) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.layout: Layout = layout_of(config, self.world)
        wants_cuda = config.deploy.device == "cuda" or (config.deploy.device == "auto" and torch.cuda.is_available())
        self.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if wants_cuda else torch.device("cpu")
        )
        if wants_cuda:
            torch.cuda.set_device(self.device)
        self._control: Any = None
        if self.world > 1:
            dist.init_process_group(self._backend)
            self._control = dist.new_group(backend="gloo", timeout=FOREVER)

    @property
    def _backend(self) -> str:
        """Both on a GPU: what `train.fsdp.cpu_offload` keeps on the host travels over gloo."""
        return "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def leads(self) -> bool:
        """Whether it is the one of its stage that exported weights are collected on."""
        return self.layout.leads(self.rank)

    def need_group(self) -> None:
        """A process group even for one process (sharding and checkpoints want one)."""
        if not dist.is_initialized():
            dist.init_process_group(self._backend, rank=0, world_size=1, store=dist.HashStore())

    @cached_property
    def mesh(self) -> DeviceMesh:
        """`[pipeline, replicate, shard, tensor]`: FSDP over the middle two; `shard` ranks hold one set of weights."""
        self.need_group()
        layout = self.layout
        shape = layout.pipeline, layout.averaged // layout.shard, layout.shard, layout.tensor
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))

    @cached_property
    def sequence_group(self) -> dist.ProcessGroup | None:
        """The ranks among which the columns of a micro-batch are split; None: this one computes them all."""
        if self.layout.sequence == 1:
            return None
        shape = self.layout.pipeline, self.layout.data, self.layout.sequence, self.layout.tensor
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("pipeline", "data", "sequence", "tensor"))
        return mesh["sequence"].get_group()

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Element d of rank 0's list, on every rank whose place along `data` is d."""
        if self.world == 1:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        everyone = [values[self.layout.data_place(rank)] for rank in range(self.world)] if values is not None else None
        dist.scatter_object_list(mine, everyone, src=0, group=self._control)
        return mine[0]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        return self.scatter([value] * self.layout.data if self.first else None)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on rank 0; an empty list elsewhere."""
        if self.world == 1:
            return [value]
        values: list[Any] | None = [None] * self.world if self.first else None
        dist.gather_object(value, values, dst=0, group=self._control)
        return values or []

    def gather_data(self, value: Any) -> list[Any]:
        """One value for every place along `data` on rank 0; an empty list elsewhere."""
        everyone = self.gather(value if self.layout.speaks(self.rank) else None)
        return [value for rank, value in enumerate(everyone) if self.layout.speaks(rank)]

    def add_up(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums (maxima for `max_...`) over `data` on rank 0; this rank's own elsewhere."""
        everyone = self.gather_data(sums)
        return add_up(everyone) if everyone else sums

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
