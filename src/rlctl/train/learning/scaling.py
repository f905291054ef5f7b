"""Dynamic loss scaling for float16, whose smallest gradients would be 0 (below 6e-8) and whose largest are infinite.

The loss is multiplied by a power of two before the backward pass and the gradient divided by it after. A gradient that
is not finite skips the step and halves the scale; `WINDOW` finite ones in a row double it. Source: Micikevicius et al.,
Mixed Precision Training, arXiv 1710.03740, section 3.2; numbers as in torch.amp.GradScaler.

The scale stands in the optimizer's parameter group, beside its settings: checkpoints carry what is no setting.
"""

from collections.abc import Iterable

import torch
from torch import nn

WINDOW = 2000
SCALE, STREAK = "loss_scale", "finite_steps"
START = {SCALE: 2.0**16, STREAK: 0}
"""What a parameter group has at first, where the loss is scaled at all."""


def scale_of(optimizer: torch.optim.Optimizer) -> float:
    """1 where the loss is not scaled."""
    return float(optimizer.param_groups[0].get(SCALE, 1.0))


def unscale(parameters: Iterable[nn.Parameter], scale: float) -> None:
    """Divide the gradients by `scale`: exact but for underflow, as it is a power of two."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if scale != 1 and gradients:
        torch._foreach_mul_(gradients, 1 / scale)


def adapt(optimizer: torch.optim.Optimizer, finite: bool) -> None:
    """The scale of the next step; nothing where the loss is not scaled."""
    group = optimizer.param_groups[0]
    if SCALE not in group:
        return
    group[STREAK] = group[STREAK] + 1 if finite else 0
    if not finite:
        group[SCALE] /= 2
    elif group[STREAK] == WINDOW:
        group[SCALE], group[STREAK] = group[SCALE] * 2, 0
