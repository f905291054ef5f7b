"""What learns or answers beside the policy: reference and critic, and the numbers per token that they give.

samples --measure--> columns reference, values, proximal --assign--> advantages, returns
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from msgspec.structs import replace

from rlctl.config import Config
from rlctl.train.data.samples import TrainSample
from rlctl.train.learning.learner import Plan, Student, plan_for
from rlctl.train.learning.measure import Measure, measure, with_column
from rlctl.train.learning.optim import Extras
from rlctl.train.model import critic
from rlctl.train.model.pipeline import answers
from rlctl.train.model.policy import Policy
from rlctl.train.model.reference import Reference
from rlctl.train.objective.assign import assign
from rlctl.train.objective.divergence import ESTIMATORS
from rlctl.train.objective.losses import value_loss
from rlctl.train.ranks import Ranks
from rlctl.train.weights import states
from rlctl.train.weights.states import Trained, Tree


class Companions:
    """Nothing at all for an algorithm that needs neither reference, critic nor proximal policy."""

    def __init__(self, config: Config, policy: Policy, start: str, total: int, ranks: Ranks) -> None:
        self.config, self.ranks, self._policy = config, ranks, policy
        algo = config.algo
        self.reference = Reference(config, policy, start, ranks) if algo.needs_reference else None
        self.critic: Student | None = None
        if algo.needs_critic:
            module = critic.load(config, start, ranks)
            self.critic = Student(module, config.critic.optim, total, ranks, config.model.dtype)

    def asked(self, tabled: bool) -> dict[str, Measure]:
        """Columns to measure before the first update on a batch."""
        asked: dict[str, Measure] = {}
        if self.reference:
            asked["reference"] = self.reference.logprobs
        if self.critic:
            asked["values"] = partial(answers, self.critic.module)
        if self.config.algo.old == "recompute" or tabled:
            asked["proximal"] = partial(answers, self._policy)
        return asked

    def finish(self, samples: Sequence[TrainSample], version: int, tabled: bool = False) -> list[TrainSample]:
        """Samples with all their columns and final advantages, on rank 0; every rank calls it.

        `tabled`: measure the policy's own log-probabilities for the mismatch table (`rid_of_table` takes them away).
        """
        config, algo, done = self.config, self.config.algo, list(samples)
        if asked := self.asked(tabled):
            plans = None
            if self.ranks.first:
                plans = plan_for([done] if done else [], config, self.ranks.layout.data, "token_mean")
            done = measure(done, plans, asked, self.ranks)
        if algo.old == "interpolate":
            done = [with_column(s, "blend", blend(s.versions, version + 1)) for s in done]
        if algo.kl.coef and algo.kl.place == "reward":
            done = [_penalised(sample, algo.kl.kind, algo.kl.coef) for sample in done]
        return assign(done, algo)

    def rid_of_table(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        """Without the column `proximal`, unless the loss wants it."""
        if self.config.algo.old == "recompute":
            return list(samples)
        return [replace(s, columns={k: v for k, v in s.columns.items() if k != "proximal"}) for s in samples]

    def learn(self, plan: Plan, position: int) -> list[dict[str, float]]:
        """The critic's optimizer steps on the policy's plan."""
        if not self.critic:
            return []
        settings = self.config.critic
        return self.critic.run(
            plan,
            lambda values, _, tokens: value_loss(values, tokens, settings.value_clip, settings.huber),
            position,
            Extras(entropy=""),
        )

    def students(self) -> dict[str, Trained]:
        """What learns, for the checkpoint."""
        return {"critic": (self.critic.module, self.critic.optimizer)} if self.critic else {}

    def others(self) -> Tree:
        """What moves without an optimizer, for the checkpoint."""
        moving = self.reference.moving if self.reference else None
        return {"reference": states.parameters(moving, frozen=True)} if moving else {}


def blend(versions: np.ndarray, learning: int) -> np.ndarray:
    """How far the proximal policy lies from behaviour to policy: `clip((v - 1 - b) / (v - b), 0, 1)` per token.

    v = `learning`, the version these updates will become; b = the version that sampled the token. 0 for the newest.
    """
    behind = np.maximum(learning - versions, 1)
    return np.clip((behind - 1) / behind, 0.0, 1.0)


def _penalised(sample: TrainSample, kind: str, coef: float) -> TrainSample:
    """`r_t - coef KL_t`, with the policy that sampled the token against the reference."""
    sampled, reference = (torch.from_numpy(a.copy()) for a in (sample.logprobs, sample.columns["reference"]))
    penalty = coef * ESTIMATORS[kind](sampled, reference).numpy()
    return with_column(sample, "rewards", sample.columns["rewards"] - penalty)
