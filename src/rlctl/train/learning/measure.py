"""Numbers per token that only a model can give, before advantages and losses: values, reference, proximal policy."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from msgspec.structs import replace

from rlctl.train.data.batches import MicroBatch, Minibatch
from rlctl.train.data.samples import TrainSample
from rlctl.train.ranks import Ranks

Measure = Callable[[Sequence[MicroBatch]], list[torch.Tensor]]
"""float32 `[N]` of each micro-batch, without gradient; none but on the last stage of a pipeline."""


def measure(
    samples: Sequence[TrainSample], plans: Sequence[list[Minibatch]] | None, asked: Mapping[str, Measure], ranks: Ranks
) -> list[TrainSample]:
    """Samples with one more column per name of `asked` (on rank 0, which has `samples` and `plans`).

    Every rank calls it. Each micro-batch is computed on the rank it was dealt to.
    """
    plan: list[Minibatch] = ranks.scatter(plans)
    micros = [micro for minibatch in plan for micro in minibatch.micros]
    index = np.concatenate([micro.index for micro in micros]) if micros else np.zeros(0, np.int64)
    values = {name: [found.cpu().numpy() for found in ask(micros)] for name, ask in asked.items()}
    mine = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in values.items()}
    everyone = ranks.gather_data((index, mine))
    if not ranks.first:
        return []
    starts = np.cumsum([sample.trainable for sample in samples])
    done = list(samples)
    for name in asked:
        flat = np.zeros(int(starts[-1]) if len(starts) else 0, np.float32)
        for places, found in everyone:
            flat[places[places >= 0]] = found[name][places >= 0]
        for i, part in enumerate(np.split(flat, starts[:-1])):
            if i < len(done):
                done[i] = with_column(done[i], name, part)
    return done


def with_column(sample: TrainSample, name: str, values: np.ndarray) -> TrainSample:
    """`values [trainable]` at the trained tokens of the sample."""
    return replace(sample, columns={**sample.columns, name: np.asarray(values, np.float32)})
