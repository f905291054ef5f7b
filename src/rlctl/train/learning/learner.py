"""Model, optimizer and schedule of one rank, and the optimizer steps of a plan: what RL and the warm start share."""

from collections.abc import Sequence

import torch
from torch import nn

from rlctl.config import Config
from rlctl.config.learning import Optim
from rlctl.models.load import load_tokenizer
from rlctl.train.data.batches import Minibatch, grid
from rlctl.train.data.samples import TrainSample
from rlctl.train.learning import optim
from rlctl.train.learning.optim import Extras, Loss, Schedule
from rlctl.train.model import policy
from rlctl.train.monitor.report import LAYER
from rlctl.train.ranks import Ranks

Plan = list[Minibatch]
"""The optimizer steps of one rank."""


class Student:
    """A model with its optimizer and schedule."""

    def __init__(self, module: nn.Module, settings: Optim, total: int, ranks: Ranks, dtype: str) -> None:
        """`dtype`: what the module computes in."""
        self.module = module
        self.settings = settings
        self.ranks = ranks
        self.optimizer = optim.adamw(module.parameters(), settings, scaled=dtype == "float16")
        self.schedule = Schedule(settings, total)

    def run(self, plan: Plan, loss: Loss, position: int, extras: Extras = Extras()) -> list[dict[str, float]]:
        """Take the optimizer steps of this rank's plan; every step's global sums, on rank 0.

        `position`: place of the first of them in the schedule. A vetoed step is the last.
        """
        rows = []
        for number, minibatch in enumerate(plan):
            lr = self.schedule.lr(position + number)
            averaged, clip = self.ranks.layout.averaged, self.settings.grad_clip
            update = optim.step(self.module, self.optimizer, minibatch, loss, averaged, lr, clip, extras)
            computed = {"computed_tokens": float(sum(micro.area for micro in minibatch.micros))}
            sums = self.ranks.add_up(update.sums | computed)
            sums |= {
                "divisor": update.divisor,
                "grad_norm": update.grad_norm,
                "skipped": float(update.skipped),
                "vetoed": float(update.vetoed),
                "lr": lr,
                **{f"{LAYER}{name}": norm for name, norm in self._of_stages(update.layer_norms).items()},
            }
            rows.append(sums)
            if update.vetoed:
                break
        return rows

    def _of_stages(self, norms: dict[str, float]) -> dict[str, float]:
        """Those of all stages on rank 0, in the model's order."""
        if not norms or self.ranks.layout.pipeline == 1:
            return norms
        return {name: norm for some in self.ranks.gather(norms) for name, norm in some.items()}


class Learner(Student):
    """The policy, with its tokenizer."""

    def __init__(self, config: Config, settings: Optim, path: str, total: int, ranks: Ranks) -> None:
        torch.manual_seed(config.run.seed)
        self.policy = policy.load(path, config, ranks)
        self.tokenizer = load_tokenizer(path, config.model.trust_remote_code, config.model.revision)
        super().__init__(self.policy, settings, total, ranks, config.model.dtype)


def plan_for(parts: Sequence[Sequence[TrainSample]], config: Config, world: int, aggregation: str) -> list[Plan]:
    """One optimizer step per part, cut into micro-batches for `world` places along `data`: one plan for each."""
    plans: list[Plan] = [[] for _ in range(world)]
    for samples in parts:
        row = _row_tokens(samples, config)
        length, tree = config.algo.constant_length, config.train.prefix_tree
        cut = grid(samples, world, config.train.micro_tokens, aggregation, row, length, tree)
        for rank, minibatch in enumerate(cut):
            plans[rank].append(minibatch)
    return plans


def _row_tokens(samples: Sequence[TrainSample], config: Config) -> int:
    """Capacity of a packed row: a whole micro-batch where attention takes variable lengths, else the longest sample."""
    if not config.train.packing:
        return 0
    if config.model.attention == "flash_attention_2":
        return config.train.micro_tokens
    return max(len(sample) for sample in samples)
