"""How the ranks of one trainer are arranged. Pure.

    rank = ((p * data + d) * sequence + s) * tensor + t

    e.g. pipeline 2, data 2, sequence 1, tensor 2      stage 0 1
                                                d 0:  ranks 0 1 -> 4 5
                                                d 1:  ranks 2 3 -> 6 7

- `pipeline`: each place is a stage, which holds some layers of the model.
- `data`: each place gets micro-batches of its own; along the others all ranks work on the same ones.
- `sequence`: each place computes some columns of a micro-batch (Ulysses).
- `tensor`: each place holds a slice of every large weight, and computes with it.

Ranks of a stage that differ in `data` or `sequence` compute the gradient of different tokens, so FSDP averages over
both. Losses are known to the last stage.
"""

from dataclasses import dataclass

from rlctl.config import Config
from rlctl.errors import ConfigError


@dataclass(frozen=True)
class Layout:
    """Sizes along each direction."""

    data: int
    sequence: int
    tensor: int
    shard: int
    """Of the `data * sequence` ranks, so many neighbours hold one set of weights between them."""
    pipeline: int = 1

    @property
    def averaged(self) -> int:
        """Ranks whose gradients FSDP averages: what a rank's share of a sum is multiplied by."""
        return self.data * self.sequence

    @property
    def in_stage(self) -> int:
        """Ranks of one stage."""
        return self.averaged * self.tensor

    def stage(self, rank: int) -> int:
        return rank // self.in_stage

    def leads(self, rank: int) -> bool:
        """Whether it hands over what its stage holds, to rank 0, which leads the first."""
        return rank % self.in_stage == 0

    def data_place(self, rank: int) -> int:
        return rank % self.in_stage // (self.sequence * self.tensor)

    def speaks(self, rank: int) -> bool:
        """Whether it reports for its place along `data`: all of the last stage that share it know the same numbers."""
        return self.stage(rank) == self.pipeline - 1 and rank % (self.sequence * self.tensor) == 0


def layout_of(config: Config, world: int) -> Layout:
    """The layout of `world` ranks; ConfigError where the sizes do not divide them."""
    parallel, fsdp = config.train.parallel, config.train.fsdp
    sizes = {f"train.parallel.{name}": getattr(parallel, name) for name in ("tensor", "sequence", "pipeline")}
    together = parallel.tensor * parallel.sequence * parallel.pipeline
    if world % together:
        product = " x ".join(f"{name} = {size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(f"{product} does not divide the trainer's {world} processes (train.processes on every host)")
    averaged = world // (parallel.tensor * parallel.pipeline)
    shard = {"full": averaged, "none": 1, "hybrid": fsdp.shard_size}[fsdp.strategy]
    if averaged % shard:
        raise ConfigError(
            f"train.fsdp.shard_size = {shard} does not divide the {averaged} ranks that weights are sharded over "
            f"({world} processes, train.parallel.tensor = {parallel.tensor}, pipeline = {parallel.pipeline})"
        )
    return Layout(world // together, parallel.sequence, parallel.tensor, shard, parallel.pipeline)
