"""Passes of micro-batches through the stages of a pipeline, by torch.distributed.pipelining.

               time -->
    stage 0    F0 F1    B0 F2 B1 F3 B2    B3          F: forward, sends states;  B: backward, sends their gradient
    stage 1       F0 B0 F1 B1 F2 B2 F3 B3             (1F1B; GPipe where there are fewer micro-batches than stages)

Micro-batches differ in shape, what torch sends does not: states travel flat, `[T, D]` with T the tokens of the largest
micro-batch, and a stage computes on the rows that are there. Every stage has the micro-batches, so torch deals out only
their numbers. Source: Narayanan et al., PipeDream, arXiv 1806.03377 (1F1B); Huang et al., GPipe, arXiv 1811.06965.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from rlctl.train.data.batches import MicroBatch
from rlctl.train.model.stages import Stage

Work = Callable[..., Any]
"""(micro-batch, *states of the stage before) -> a tuple of states `[B, S, D]` for the next; on the last stage the loss,
or anything where there is no backward pass."""


def through(module: Any, work: Work, micros: Sequence[MicroBatch], carried: int = 1, backward: bool = False) -> None:
    """Call `work` with every micro-batch on every stage of `module.stage`, in their order, and go back with gradients.

    `carried`: how many states go from stage to stage; the first has a gradient. Every stage calls this with the same
    micro-batches.
    """
    if not micros:
        return
    if not module.stage.alone:
        _schedule(module, work, micros, carried, backward)
        return
    for micro in micros:
        result = work(micro)
        if backward:
            result.backward()


@torch.no_grad()
def answers(module: Any, micros: Sequence[MicroBatch]) -> list[torch.Tensor]:
    """Log-probabilities (of a critic: values) float32 `[N]` of each micro-batch; none but on the last stage."""
    found: list[torch.Tensor] = []

    def ask(micro: MicroBatch, *states: torch.Tensor) -> Any:
        answer = module(micro, "", None, *states)
        if not module.stage.last:
            return (answer,)
        found.append(answer.logprobs)
        return answer.logprobs

    through(module, ask, micros)
    return found


def _schedule(module: Any, work: Work, micros: Sequence[MicroBatch], carried: int, backward: bool) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage: Stage = module.stage
    part = _Part(work, micros, [module.spread.shape(micro) for micro in micros], stage.last)
    width = module.lm.config.get_text_config().hidden_size
    like = tuple(
        torch.empty(part.capacity, width, dtype=stage.dtype, device="meta", requires_grad=backward and number == 0)
        for number in range(carried)
    )
    torchs = PipelineStage(
        part,
        stage.index,
        stage.count,
        next(module.lm.parameters()).device,
        input_args=() if stage.first else like,
        output_args=torch.empty((), device="meta") if stage.last else like,
        group=stage.group,
    )
    kind = Schedule1F1B if backward and len(micros) >= stage.count else ScheduleGPipe
    loss = (lambda value, number: value) if backward else None
    numbers = torch.arange(len(micros))
    kind(torchs, len(micros), loss, scale_grads=False).step(number=numbers, target=numbers, return_outputs=False)


class _Part(nn.Module):
    """What torch runs on a stage: flat states `[T, D]` and the number of a micro-batch -> flat states."""

    def __init__(self, work: Work, micros: Sequence[MicroBatch], shapes: Sequence[tuple[int, int]], last: bool) -> None:
        super().__init__()
        self.work, self.micros, self.shapes, self.last = work, micros, shapes, last
        self.capacity = max(rows * width for rows, width in shapes)

    def forward(self, *flat: torch.Tensor, number: torch.Tensor) -> Any:
        at = int(number)
        rows, width = self.shapes[at]
        result = self.work(self.micros[at], *(x[: rows * width].view(rows, width, -1) for x in flat))
        if self.last:
            return result
        return tuple(pad(x.flatten(0, 1), (0, 0, 0, self.capacity - rows * width)) for x in result)
