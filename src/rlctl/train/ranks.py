"""The processes of one trainer: torchrun's ranks, or the one process there is without torchrun.

Tensors of the model travel over nccl (CUDA) or gloo (CPU); what is not a tensor travels over a gloo group of its own,
whose waits are unbounded, because rank 0 may wait hours for a batch. A rank that dies closes its sockets, which ends
the others.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rlctl.config import Config
from rlctl.train.objective.tokens import add_up

FOREVER = timedelta(days=30)


class Ranks:
    """This process among its peers; every method is a no-op or the identity when there is only one."""

    def __init__(self, config: Config) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        wants_cuda = config.deploy.device == "cuda" or (config.deploy.device == "auto" and torch.cuda.is_available())
        self.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if wants_cuda else torch.device("cpu")
        )
        if wants_cuda:
            torch.cuda.set_device(self.device)
        self._control: Any = None
        if self.world > 1:
            dist.init_process_group("nccl" if wants_cuda else "gloo")
            self._control = dist.new_group(backend="gloo", timeout=FOREVER)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def need_group(self) -> None:
        """A process group even for one process (sharding wants one)."""
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Element r of rank 0's list, on rank r."""
        if self.world == 1:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, list(values) if values is not None else None, src=0, group=self._control)
        return mine[0]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        return self.scatter([value] * self.world if self.first else None)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on rank 0; an empty list elsewhere."""
        if self.world == 1:
            return [value]
        values: list[Any] | None = [None] * self.world if self.first else None
        dist.gather_object(value, values, dst=0, group=self._control)
        return values or []

    def add_up(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums (maxima for `max_...`) over ranks on rank 0; this rank's own elsewhere."""
        everyone = self.gather(sums)
        return add_up(everyone) if everyone else sums

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
