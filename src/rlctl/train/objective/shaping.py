"""A leased batch of groups -> samples to train on, one outcome per trajectory, and what the metrics say about it."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from rlctl.config.algorithm import TOKEN_KINDS, Algo
from rlctl.train.data.samples import BadSteps, TrainSample, build
from rlctl.train.objective.advantages import ADVANTAGES, group_advantages, has_signal, remax, step_groups
from rlctl.train.objective.assign import with_rewards
from rlctl.train.objective.credit import discounted, place_rewards
from rlctl.wire.arrays import count, filled
from rlctl.wire.samples import Group, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shaped:
    """What one batch becomes."""

    samples: list[TrainSample]
    """In the order of groups and trajectories."""
    outcomes: dict[str, str]
    """Trajectory uid -> trained | zero_variance | overlong | filtered | failed, for every trajectory of the batch."""
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

    def joined(self, other: "Shaped") -> "Shaped":
        """Both batches as one."""
        mine, theirs = asdict_shallow(self), asdict_shallow(other)
        return Shaped(**{k: v | theirs[k] if isinstance(v, dict) else v + theirs[k] for k, v in mine.items()})


def shape(groups: Sequence[Group], algo: Algo, max_context: int, max_response: int = 0) -> Shaped:
    """Samples and outcomes of a batch.

    A trajectory is `failed` (no tokens, no part in the baseline) when its episode failed, when it has no reward, or
    when its steps cannot be trained on. One that is longer than `max_context` tokens in any sample is `overlong`: its
    reward is real, so it counts in the baseline, but its tokens are left out; likewise one with an answer cut off,
    under `algo.drop_truncated`. A group without signal is `zero_variance` under `algo.zero_variance = "drop"`. Of the
    others `algo.keep_uncertain` is trained on, the rest is `filtered`. `max_response`: longest answer, for
    `algo.overlong_buffer`. Dynamic sampling (fetching more groups for dropped ones) belongs to the caller, who sees
    `flat_groups`.
    """
    shaped = Shaped(samples=[], outcomes={}, groups=len(groups))
    rated = [_rate(group, algo, max_response, shaped.outcomes) for group in groups]
    sure = _sure([r for r in rated if r.signal], algo.keep_uncertain)
    for group, one in zip(groups, rated, strict=True):
        shaped.rewards.extend(_reward(t) for t in one.members)
        shaped.successes.extend(t.facts.success for t in one.members)
        shaped.advantages.extend(float(advantage.mean()) for advantage in one.advantages)
        for trajectory, advantage in zip(one.members, one.advantages, strict=True):
            samples = one.samples[trajectory.uid]
            if algo.zero_variance == "drop" and not one.signal:
                shaped.outcomes[trajectory.uid] = "zero_variance"
            elif any(one is other for other in sure):
                shaped.outcomes[trajectory.uid] = "filtered"
            elif any(len(sample) > max_context for sample in samples) or (algo.drop_truncated and _cut_off(trajectory)):
                shaped.outcomes[trajectory.uid] = "overlong"
            else:
                shaped.outcomes[trajectory.uid] = "trained"
                marked = [_marked(sample, advantage, group, trajectory) for sample in samples]
                if algo.advantage in TOKEN_KINDS:
                    reward = one.rewards[trajectory.uid]
                    marked = with_rewards(marked, _token_rewards(trajectory, reward, advantage, algo))
                shaped.samples.extend(sample for sample in marked if sample.trainable)
    return replace(shaped, flat_groups=sum(not one.signal for one in rated))


def asdict_shallow(shaped: Shaped) -> dict[str, Any]:
    return {name: getattr(shaped, name) for name in shaped.__dataclass_fields__}


@dataclass(frozen=True)
class _Rated:
    """A group with what its rewards say."""

    members: list[Trajectory]
    """Those that count."""
    samples: dict[str, list[TrainSample]]
    rewards: dict[str, float]
    """By uid, penalties included."""
    advantages: list[np.ndarray]
    """See `_advantages`."""
    signal: bool


def _rate(group: Group, algo: Algo, max_response: int, outcomes: dict[str, str]) -> _Rated:
    """Sorts out what failed (into `outcomes`) and the greedy baseline, and compares the rest."""
    baseline = [t for t in group.trajectories if algo.advantage == "remax" and _greedy(t)]
    others = [t for t in group.trajectories if t not in baseline]
    usable = {t.uid: samples for t in others if (samples := _samples(t, outcomes)) is not None}
    members = [t for t in others if t.uid in usable]
    outcomes.update({t.uid: "trained" for t in baseline})
    if algo.advantage == "remax" and not any(_rated(t) for t in baseline):
        log.warning("group %s has no greedy trajectory, which remax needs: it counts as failed", group.prompt_uid)
        outcomes.update({t.uid: "failed" for t in group.trajectories})
        members = []
    rewards = {t.uid: shaped_reward(t, algo, max_response) for t in [*members, *baseline] if _rated(t)}
    advantages = _advantages(members, rewards, [t for t in baseline if _rated(t)], algo)
    signal = any(has_signal(advantage) for advantage in advantages) or _always(algo, members)
    return _Rated(members, usable, rewards, advantages, signal)


def _sure(rated: Sequence[_Rated], share: float) -> list[_Rated]:
    """The groups that do not belong to the `share` whose rewards differ most; ties go to the earlier group.

    Source: RAGEN's uncertainty filter, arXiv 2504.20073 (in-group std of rewards).
    """
    keep = max(1, round(share * len(rated)))
    spread = [float(np.std([one.rewards[t.uid] for t in one.members])) for one in rated]
    order = sorted(range(len(rated)), key=lambda i: (-spread[i], i))
    return [rated[i] for i in order[keep:]]


def shaped_reward(trajectory: Trajectory, algo: Algo, max_response: int) -> float:
    """`R`, or its binary form, less what its length costs.

    overlong_buffer = b, longest answer of L tokens, limit M: minus `clip((L - (M - b)) / b, 0, 1)`. Source: DAPO, arXiv
    2503.14476, eq. 13. length_penalty = p: minus `p / 1000` per response token.
    """
    reward = _reward(trajectory)
    if algo.binary_reward is not None:
        reward = float(reward >= algo.binary_reward)
    if algo.overlong_buffer or algo.length_penalty:
        lengths = [count(step.response_ids) for step in trajectory.steps]
        if algo.overlong_buffer:
            over = max(lengths) - (max_response - algo.overlong_buffer)
            reward -= min(max(over / algo.overlong_buffer, 0.0), 1.0)
        reward -= algo.length_penalty * sum(lengths) / 1000
    return reward


def _cut_off(trajectory: Trajectory) -> bool:
    return any(step.finish_reason == "length" for step in trajectory.steps)


def _advantages(
    members: Sequence[Trajectory], by_uid: Mapping[str, float], baseline: Sequence[Trajectory], algo: Algo
) -> list[np.ndarray]:
    """One array per member: `[1]`, of the whole trajectory, or `[steps]` (gigpo); zeros where tokens decide later."""
    rewards = [by_uid[t.uid] for t in members]
    if algo.advantage == "remax":
        greedy = float(np.mean([by_uid[t.uid] for t in baseline])) if members else 0.0
        whole = remax(np.array(rewards), greedy)
    elif algo.advantage in ADVANTAGES:
        whole = group_advantages(algo.advantage, rewards)
    else:
        whole = np.zeros(len(members))
    if algo.advantage != "gigpo":
        return [np.array([value]) for value in whole]
    anchors = [[step.prompt_ids for step in sorted(t.steps, key=lambda s: s.step_index)] for t in members]
    returns = [discounted(_turn_rewards(t, by_uid[t.uid], algo), algo.gamma) for t in members]
    steps = step_groups(anchors, returns)
    return [value + algo.step_weight * step for value, step in zip(whole, steps, strict=True)]


def _always(algo: Algo, members: Sequence[Trajectory]) -> bool:
    """Whether equal rewards are a signal too: where a critic, a teacher or the whole batch is the baseline."""
    return algo.advantage in ("gae", "bi_level_gae", "reinforce_pp", "distill") and bool(members)


def _greedy(trajectory: Trajectory) -> bool:
    return bool(trajectory.steps) and all(step.temperature == 0 for step in trajectory.steps)


def _rated(trajectory: Trajectory) -> bool:
    """Whether the episode went to its end and has a reward to count with."""
    return trajectory.status == "complete" and trajectory.reward is not None and bool(np.isfinite(trajectory.reward))


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return float(trajectory.reward)


def _turn_rewards(trajectory: Trajectory, reward: float, algo: Algo) -> np.ndarray:
    """Rewards of the steps `[T]` in their order; they add up to `reward`."""
    return place_rewards(reward, np.arange(len(trajectory.steps)), _given(trajectory, algo))


def _given(trajectory: Trajectory, algo: Algo) -> list[float]:
    """Rewards by `step_index`: the agent's own where it gave any, else the environment's."""
    if not algo.turn_rewards:
        return []
    own = {step.step_index: step.reward for step in trajectory.steps}
    if all(reward is None for reward in own.values()):
        return list(trajectory.facts.turn_rewards)
    return [own.get(index) or 0.0 for index in range(max(own) + 1)]


def _token_rewards(
    trajectory: Trajectory, reward: float, advantage: np.ndarray, algo: Algo
) -> tuple[float, list[float]]:
    """What token-level advantages are made of: the sum of rewards, and those that stand at the end of a turn."""
    if algo.advantage == "reinforce_pp_baseline":
        return float(advantage[0]), []
    return reward, _given(trajectory, algo)


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


def _marked(sample: TrainSample, advantage: np.ndarray, group: Group, trajectory: Trajectory) -> TrainSample:
    """`advantage`: `[1]` or one per step of the trajectory, in order of `step_index`."""
    if len(advantage) > 1:
        order = sorted(step.step_index for step in trajectory.steps)
        spread = advantage[np.searchsorted(order, sample.turns)].astype(np.float32)
    else:
        spread = filled(sample.trainable, advantage[0])
    return structs.replace(sample, advantages=spread, group=group.prompt_uid, env=trajectory.env or group.env)
