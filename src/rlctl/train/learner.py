"""Policy, optimizer and schedule of one rank, and the optimizer steps of a plan: what RL and the warm start share."""

from collections.abc import Sequence

import torch

from rlctl.config import Config
from rlctl.config.learning import Optim
from rlctl.models.load import load_tokenizer
from rlctl.train import optim, policy
from rlctl.train.batches import Minibatch, grid
from rlctl.train.optim import Loss, Schedule
from rlctl.train.ranks import Ranks
from rlctl.train.samples import TrainSample

Plan = list[Minibatch]
"""The optimizer steps of one rank."""


class Learner:
    """Everything that changes when the policy learns."""

    def __init__(self, config: Config, settings: Optim, path: str, total: int, ranks: Ranks) -> None:
        torch.manual_seed(config.run.seed)
        self.config = config
        self.settings = settings
        self.ranks = ranks
        self.policy = policy.load(path, config, ranks)
        self.tokenizer = load_tokenizer(path, config.model.trust_remote_code, config.model.revision)
        self.optimizer = optim.adamw(self.policy.parameters(), settings)
        self.schedule = Schedule(settings, total)

    def run(self, plans: Sequence[Plan] | None, loss: Loss, position: int, entropy: str = "") -> list[dict[str, float]]:
        """Take the optimizer steps of this rank's plan (rank 0 has all plans); every step's global sums, on rank 0.

        `position`: place of the first of them in the schedule.
        """
        plan: Plan = self.ranks.scatter(plans)
        rows = []
        for number, minibatch in enumerate(plan):
            lr = self.schedule.lr(position + number)
            update = optim.step(
                self.policy, self.optimizer, minibatch, loss, self.ranks.world, lr, self.settings.grad_clip, entropy
            )
            sums = self.ranks.add_up(update.sums)
            sums |= {
                "divisor": update.divisor,
                "grad_norm": update.grad_norm,
                "skipped": float(update.skipped),
                "lr": lr,
            }
            rows.append(sums)
        return rows


def plan_for(parts: Sequence[Sequence[TrainSample]], config: Config, world: int, aggregation: str) -> list[Plan]:
    """One optimizer step per part, cut into micro-batches for `world` ranks: element r is rank r's plan."""
    plans: list[Plan] = [[] for _ in range(world)]
    for samples in parts:
        row = _row_tokens(samples, config)
        for rank, minibatch in enumerate(grid(samples, world, config.train.micro_tokens, aggregation, row)):
            plans[rank].append(minibatch)
    return plans


def _row_tokens(samples: Sequence[TrainSample], config: Config) -> int:
    """Capacity of a packed row: a whole micro-batch where attention takes variable lengths, else the longest sample."""
    if not config.train.packing:
        return 0
    if config.model.attention == "flash_attention_2":
        return config.train.micro_tokens
    return max(len(sample) for sample in samples)
