"""AdamW, its schedule, and one optimizer step over a grid of micro-batches."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from rlctl.config.learning import Optim
from rlctl.errors import ConfigError
from rlctl.train.data.batches import MicroBatch, Minibatch
from rlctl.train.learning import scaling
from rlctl.train.learning.norms import layer_norms, total_norm
from rlctl.train.model.pipeline import through
from rlctl.train.model.policy import tokens_of
from rlctl.train.model.stages import add_tied
from rlctl.train.objective.tokens import Sums, Tokens, add_up

Loss = Callable[[torch.Tensor, torch.Tensor, Tokens], tuple[torch.Tensor, Sums]]
"""(logprobs, entropies, tokens) -> (sum over the micro-batch, metric sums)."""


class Schedule:
    """A transformers schedule as a pure function of the position, so that resuming needs only a number.

    `lr(n) = lr * f(n)` during warm-up, then `lr * max(f(n), min_lr_fraction)`, with f the schedule by that name.
    "constant" with warm-up steps means "constant_with_warmup".
    """

    def __init__(self, config: Optim, total: int) -> None:
        from transformers import get_scheduler

        self._config = config
        self._warmup = config.warmup_steps or round(config.warmup_fraction * total)
        name = "constant_with_warmup" if config.schedule == "constant" and self._warmup else config.schedule
        unit = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        try:
            scheduler = get_scheduler(name, unit, self._warmup, total)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"train.optim.schedule = {config.schedule!r} cannot be used: {error}") from error
        if not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
            raise ConfigError(f"train.optim.schedule = {config.schedule!r} depends on more than the step")
        self._factor: Callable[[int], float] = scheduler.lr_lambdas[0]

    def lr(self, position: int) -> float:
        """Learning rate of optimizer step `position` (from 0)."""
        factor = float(self._factor(position))
        if position >= self._warmup:
            factor = max(factor, self._config.min_lr_fraction)
        return self._config.lr * factor


def adamw(parameters: Iterable[nn.Parameter], config: Optim, scaled: bool = False) -> torch.optim.AdamW:
    """AdamW over the parameters that train; fused, which is the fastest on CPU and CUDA alike.

    `scaled`: with a dynamic loss scale.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    group = {"params": trained, **(scaling.START if scaled else {})}
    return torch.optim.AdamW(
        [group], lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
    )


@dataclass(frozen=True)
class Update:
    """What one optimizer step did, on this rank."""

    sums: dict[str, float]
    """Metric sums over this rank's micro-batches; none but on the last stage of a pipeline."""
    divisor: float
    grad_norm: float
    """Before clipping, over all ranks."""
    skipped: bool
    """The gradient was not finite, so nothing was changed."""
    vetoed: bool = False
    """Refused by `Extras.veto`, so nothing was changed."""
    layer_norms: dict[str, float] = field(default_factory=dict)
    """Of every layer of this stage, before clipping, over its ranks; where `Extras.layers` asks for it."""


@dataclass(frozen=True)
class Extras:
    """What some algorithms add to an optimizer step."""

    entropy: str = "value"
    """Whether entropies are computed, and with gradient: see `Policy.forward`."""
    reference: Callable[..., torch.Tensor] | None = None
    """Logits of a micro-batch to compare the whole distribution with. In a pipeline it is given the states of the stage
    before, too, and gives states on, as the policy does."""
    veto: Callable[[dict[str, float]], bool] | None = None
    """Given this rank's metric sums, whether the update is not to be made; the same answer on all ranks."""
    layers: bool = False
    """Whether the gradient's norm is measured layer by layer, too."""


def step(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    minibatch: Minibatch,
    loss: Loss,
    averaged: int,
    lr: float,
    grad_clip: float,
    extras: Extras = Extras(),
) -> Update:
    """Forward and backward over all micro-batches, clip, step.

    Each sum is divided by the global count; sharding averages gradients over `averaged` ranks, hence that factor. A
    non-finite gradient norm is the same on all ranks, so all of them skip together.
    """
    scale = scaling.scale_of(optimizer)
    numbers = _gradients(policy, minibatch.micros, loss, averaged / minibatch.divisor * scale, extras)
    if extras.veto and extras.veto(numbers):
        optimizer.zero_grad(set_to_none=True)
        return Update(numbers, minibatch.divisor, 0.0, skipped=False, vetoed=True)
    add_tied(policy)
    scaling.unscale(policy.parameters(), scale)
    layers = layer_norms(policy) if extras.layers else {}
    total = total_norm(policy)
    nn.utils.clip_grads_with_norm_(policy.parameters(), grad_clip, total)
    norm = float(total)
    skipped = not math.isfinite(norm)
    if not skipped:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    scaling.adapt(optimizer, finite=not skipped)
    optimizer.zero_grad(set_to_none=True)
    return Update(numbers, minibatch.divisor, norm, skipped, layer_norms=layers)


def _gradients(
    policy: Any, micros: Sequence[MicroBatch], loss: Loss, factor: float, extras: Extras
) -> dict[str, float]:
    """Add `factor` times the gradient of every micro-batch's loss; their metric sums, where the loss is computed."""
    parts: list[Sums] = []
    other = extras.reference

    def work(micro: MicroBatch, *states: torch.Tensor) -> Any:
        against = other(micro, *states[1:]) if other else None
        scores = policy(micro, extras.entropy, against, *states[:1])
        if not policy.stage.last:
            return (scores,) if against is None else (scores, against)
        tokens = replace(tokens_of(micro, scores.logprobs.device), divergence=scores.divergence)
        value, sums = loss(scores.logprobs, scores.entropies, tokens)
        parts.append(sums)
        return value * factor

    through(policy, work, micros, carried=2 if other else 1, backward=True)
    return add_up([{name: float(value) for name, value in sums.items()} for sums in parts])
