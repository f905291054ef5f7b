"""A leased batch of groups -> samples to train on, one outcome per trajectory, and what the metrics say about it."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlctl.config.learning import Algo
from rlctl.train.advantages import group_advantages, has_signal
from rlctl.train.samples import BadSteps, TrainSample, build
from rlctl.wire.messages import Group, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shaped:
    """What one batch becomes."""

    samples: list[TrainSample]
    """In the order of groups and trajectories."""
    outcomes: dict[str, str]
    """Trajectory uid -> trained | zero_variance | overlong | failed, for every trajectory of the batch."""
    rewards: list[float] = field(default_factory=list)
    """Of every trajectory that did not fail."""
    successes: list[bool] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    """Of every trajectory that did not fail, zero-variance groups included."""
    groups: int = 0
    flat_groups: int = 0
    """Groups without signal."""

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.outcomes.values()))


def shape(groups: Sequence[Group], algo: Algo, max_context: int) -> Shaped:
    """Samples and outcomes of a batch.

    A trajectory is `failed` (no tokens, no part in the baseline) when its episode failed, when it has no reward, or
    when its steps cannot be trained on. One that is longer than `max_context` tokens in any sample is `overlong`: its
    reward is real, so it counts in the baseline, but its tokens are left out. A group without signal is
    `zero_variance` under `algo.zero_variance = "drop"`. Dynamic sampling (fetching more groups for dropped ones)
    belongs to the caller, who sees `flat_groups`.
    """
    shaped = Shaped(samples=[], outcomes={}, groups=len(groups))
    flat = 0
    for group in groups:
        usable = {t.uid: samples for t in group.trajectories if (samples := _samples(t, shaped.outcomes)) is not None}
        members = [t for t in group.trajectories if t.uid in usable]
        rewards = [float(t.reward) for t in members if t.reward is not None]
        advantages = group_advantages(algo.advantage, rewards)
        shaped.rewards.extend(rewards)
        shaped.successes.extend(t.facts.success for t in members)
        shaped.advantages.extend(advantages.tolist())
        flat += not has_signal(advantages)
        dropped = algo.zero_variance == "drop" and not has_signal(advantages)
        for trajectory, advantage in zip(members, advantages, strict=True):
            samples = usable[trajectory.uid]
            if dropped:
                shaped.outcomes[trajectory.uid] = "zero_variance"
            elif any(len(sample) > max_context for sample in samples):
                shaped.outcomes[trajectory.uid] = "overlong"
            else:
                shaped.outcomes[trajectory.uid] = "trained"
                shaped.samples.extend(_with_advantage(sample, advantage) for sample in samples if sample.trainable)
    return replace(shaped, flat_groups=flat)


def _samples(trajectory: Trajectory, outcomes: dict[str, str]) -> list[TrainSample] | None:
    """Samples of a trajectory, or None with outcome `failed`."""
    problem = ""
    if trajectory.status != "complete":
        problem = trajectory.facts.error or f"status {trajectory.status}"
    elif trajectory.reward is None or not np.isfinite(trajectory.reward):
        problem = f"reward {trajectory.reward}"
    else:
        try:
            samples = build(trajectory.uid, trajectory.steps)
            if any(sample.trainable for sample in samples):
                return samples
            problem = "no response token"
        except BadSteps as error:
            problem = str(error)
    outcomes[trajectory.uid] = "failed"
    log.warning("trajectory %s is not trained on: %s", trajectory.uid, problem)
    return None


def _with_advantage(sample: TrainSample, advantage: float) -> TrainSample:
    return replace(sample, advantages=np.full(len(sample), advantage, np.float32))
