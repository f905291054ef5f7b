"""Ended trajectories as plain rows, for `rlctl traj`: what was sampled, in which context, by which version. Pure."""

from collections.abc import Iterable
from typing import Any

from rlctl.wire.arrays import count, expand_versions, unpack_floats, unpack_ids
from rlctl.wire.samples import Ended, Step

Row = dict[str, Any]


def summary(ended: Ended) -> Row:
    """One line about a trajectory."""
    one = ended.trajectory
    reasons = [step.fork_reason for step in one.steps if step.fork_reason]
    return {
        "number": ended.number,
        "uid": one.uid,
        "prompt_uid": one.prompt_uid,
        "channel": one.channel,
        "env": one.env,
        "outcome": ended.outcome,
        "reward": one.reward,
        "steps": len(one.steps),
        "prompt_tokens": sum(count(step.prompt_ids) for step in one.steps),
        "response_tokens": sum(count(step.response_ids) for step in one.steps),
        "versions": sorted({version for step in one.steps for version, _ in step.versions}),
        "forks": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
        "error": one.facts.error,
    }


def steps(ended: Ended) -> list[Row]:
    """One row per model call."""
    return [
        {
            "step": step.step_index,
            "parent": step.parent,
            "fork_reason": step.fork_reason,
            "finish_reason": step.finish_reason,
            "prompt_tokens": count(step.prompt_ids),
            "response_tokens": count(step.response_ids),
            "versions": step.versions,
            "logprob": round(float(unpack_floats(step.logprobs).sum()), 4),
            "engine": step.engine,
            **({"images": step.images} if step.images else {}),
        }
        for step in ended.trajectory.steps
    ]


def tokens(step: Step, trained: bool) -> Iterable[Row]:
    """The tokens of one Step: the new part of its prompt, then what was sampled. `trained`: the outcome was."""
    given = {"sampled": False, "trained": False, "logprob": None, "version": None}
    for token in unpack_ids(step.prompt_ids).tolist():
        yield {"step": step.step_index, "id": token, **given}
    sampled = (unpack_ids(step.response_ids), unpack_floats(step.logprobs), expand_versions(step.versions))
    for token, logprob, version in zip(*(values.tolist() for values in sampled), strict=True):
        row = {"step": step.step_index, "id": token, "sampled": True, "trained": trained}
        yield {**row, "logprob": round(logprob, 4), "version": version}
