"""A model cut into the stages of a pipeline: each is the whole model without the parts that the others have.

    stage 0   embedding, blocks 0 1 2                       --> states [B, S, D]
    stage 1                            blocks 3 4 5, norm, output layer      --> logits, loss

A part that is left out becomes one that hands on what it is given. So the model's own forward pass runs on every stage,
with its masks and rotary embeddings, and every parameter keeps its name, by which checkpoints and publications put the
stages together again. Whether that is right for a model is tried: without blocks and norm it has to hand on what it is
given.

Tied embeddings: the first and the last stage hold the same matrix, add up its gradients, and so keep it the same.
Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473, section 2.2.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.train.model.blocks import blocks_of
from rlctl.train.ranks import Ranks

KEY = "train.parallel.pipeline"


class Elsewhere(nn.Module):
    """In the place of a part that another stage has."""

    def forward(self, states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return states


@dataclass(frozen=True)
class Stage:
    """A rank's place in the pipeline."""

    index: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None
    """One rank of every stage, in their order, which work on the same micro-batches; None: there is one stage."""
    dtype: torch.dtype = torch.float32
    """Of the states that go from stage to stage."""

    @property
    def alone(self) -> bool:
        return self.count == 1

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def blocks(self, total: int) -> range:
        """Its blocks of a model's `total`: neighbours; where they do not divide, the earlier stages have one more."""
        size, more = divmod(total, self.count)
        start = self.index * size + min(self.index, more)
        return range(start, start + size + (self.index < more))

    def norm(self, part: torch.Tensor) -> torch.Tensor:
        """The norm of a vector of which this stage holds a part with the norm `part`."""
        if self.alone:
            return part
        square = part.double().square()
        dist.all_reduce(square, group=self.group)
        return square.sqrt().to(part.dtype)

    def together(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Everybody's CPU tensors by name, on the first stage; nothing elsewhere."""
        if self.alone:
            return tensors
        lists: list[Any] = [None] * self.count
        dist.all_gather_object(lists, [(name, x.shape, x.dtype) for name, x in tensors.items()], group=self.group)
        if not self.first:
            for value in tensors.values():
                dist.send(value, group=self.group, group_dst=0)
            return {}
        for index in range(1, self.count):
            for name, shape, dtype in lists[index]:
                tensors[name] = torch.empty(shape, dtype=dtype)
                dist.recv(tensors[name], group=self.group, group_src=index)
        return tensors


def stage_of(config: Config, ranks: Ranks) -> Stage:
    """This rank's."""
    layout = ranks.layout
    if layout.pipeline == 1:
        return Stage()
    group = ranks.mesh["pipeline"].get_group()
    return Stage(layout.stage(ranks.rank), layout.pipeline, group, getattr(torch, config.model.dtype))


def entering(inputs: dict[str, Any], states: torch.Tensor | None) -> dict[str, Any]:
    """Arguments of the model's forward pass on a stage that is given `states [B, S, D]` of the one before."""
    if states is None:
        return inputs
    return {name: value for name, value in inputs.items() if name != "input_ids"} | {"inputs_embeds": states}


def cut(module: Any) -> None:
    """Leave out of `module` what is not of `module.stage`; `module.lm` is the transformer.

    ConfigError where that cannot be done, or would not be exact.
    """
    lm, stage = module.lm, module.stage
    body, head, embedding = lm.base_model, lm.get_output_embeddings(), lm.get_input_embeddings()
    names = {part: name for name, part in body.named_modules()}
    blocks = [names[block] for block in blocks_of(lm) if block in names]
    if len(blocks) < stage.count:
        raise ConfigError(f"{KEY} = {stage.count}, but the model has {len(blocks)} layers")
    _check_trained([body.get_submodule(name) for name in blocks], stage.count)
    parts = {name: body.get_submodule(name) for name in (*blocks, _norm(body, blocks, embedding))}
    for name in parts:
        body.set_submodule(name, Elsewhere())
    _check_rest(body)
    keeps_matrix = tied(lm) is not None and (stage.first or stage.last)
    for number, (name, part) in enumerate(parts.items()):
        if number in stage.blocks(len(blocks)) or (number == len(blocks) and stage.last):
            body.set_submodule(name, part)
    if not (stage.first or keeps_matrix):
        body.set_submodule(names[embedding], Elsewhere())
    if not stage.last:
        if head is not None and not keeps_matrix:
            lm.set_output_embeddings(Elsewhere())
        for name, part in list(module.named_children()):
            if part is not lm:
                module.set_submodule(name, Elsewhere())


def _check_trained(blocks: list[nn.Module], count: int) -> None:
    """ConfigError where there is something to train, but not on every stage."""
    trained = [any(parameter.requires_grad for parameter in block.parameters()) for block in blocks]
    stages = [any(trained[number] for number in Stage(index, count).blocks(len(blocks))) for index in range(count)]
    if any(stages) and not all(stages):
        raise ConfigError(
            f"{KEY} cannot be used: train.lora.target_modules names no module of stage {stages.index(False)}"
        )


def _norm(body: nn.Module, blocks: list[str], embedding: nn.Module) -> str:
    """Name of the one part with parameters that comes after the blocks."""
    lists = {name.partition(".")[0] for name in blocks}
    rest = [
        name
        for name, part in body.named_children()
        if name not in lists and part is not embedding and any(True for _ in part.parameters())
    ]
    if len(rest) != 1:
        raise ConfigError(
            f"{KEY} cannot be used: beside embedding and layers {type(body).__name__} has "
            f"{', '.join(rest) or 'no part of its own'}, where one norm is expected"
        )
    return rest[0]


def _check_rest(body: Any) -> None:
    """ConfigError unless a model without blocks and norm hands on the very states that it is given."""
    weight = next(body.parameters())
    given = torch.linspace(-1, 1, 2 * body.config.get_text_config().hidden_size, device=weight.device).view(1, 2, -1)
    positions = torch.arange(2, device=weight.device)[None]
    with torch.no_grad():
        found = body(inputs_embeds=given, position_ids=positions, use_cache=False).last_hidden_state
    if not torch.equal(found, given):
        raise ConfigError(
            f"{KEY} cannot be used: {type(body).__name__} changes the states between its embedding and its layers, "
            "or after its norm"
        )


def tied(lm: Any) -> nn.Parameter | None:
    """The matrix that is both embedding and output layer, where this stage has it."""
    head, embedding = lm.get_output_embeddings(), lm.get_input_embeddings()
    weight = getattr(embedding, "weight", None)
    return weight if weight is not None and getattr(head, "weight", None) is weight else None


def owned(module: Any) -> dict[str, nn.Parameter]:
    """The parameters of this stage by name, without the last one's copy of a tied embedding."""
    copy = None if module.stage.first else tied(module.lm)
    return {name: parameter for name, parameter in module.named_parameters() if parameter is not copy}


@torch.no_grad()
def add_tied(module: Any) -> None:
    """Add up the gradients of a tied embedding, on the first and on the last stage."""
    stage = module.stage
    weight = None if stage.alone else tied(module.lm)
    if weight is None or weight.grad is None:
        return
    mine = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
    theirs = torch.empty_like(mine, memory_format=torch.contiguous_format)
    peer = stage.count - 1 if stage.first else 0
    sent = dist.P2POp(dist.isend, mine.contiguous(), group=stage.group, group_peer=peer)
    got = dist.P2POp(dist.irecv, theirs, group=stage.group, group_peer=peer)
    for work in dist.batch_isend_irecv([sent, got]):
        work.wait()
    mine.add_(theirs)
