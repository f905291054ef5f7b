"""A trajectory as a row of a dataset: tokens exactly, text for people, and where it comes from."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rlctl.data.choose import response_tokens, versions
from rlctl.wire.arrays import pack_floats, pack_ids, unpack_floats, unpack_ids
from rlctl.wire.messages import Feedback
from rlctl.wire.samples import Ended, Facts, Step, Trajectory

Row = dict[str, Any]
Decode = Callable[[bytes], str]


@dataclass(frozen=True)
class Source:
    """Provenance that all rows of a run share."""

    run: str
    config_hash: str
    """SHA-256 of the run's resolved.toml."""


def source(run_dir: Path) -> Source:
    resolved = (run_dir / "resolved.toml").read_bytes()
    return Source(run_dir.absolute().name, hashlib.sha256(resolved).hexdigest())


def native(ended: Ended, where: Source, decode: Decode, feedback: Sequence[Feedback] = ()) -> Row:
    """Everything that is known; `trajectory` brings it back."""
    one = ended.trajectory
    low, high = versions(one)
    return {
        "uid": one.uid,
        "prompt_uid": one.prompt_uid,
        "run": where.run,
        "config_hash": where.config_hash,
        "channel": one.channel,
        "env": one.env,
        "outcome": ended.outcome,
        "number": ended.number,
        "ended_at": ended.t,
        "status": one.status,
        "reward": one.reward,
        "reward_parts": json.dumps(one.reward_parts, sort_keys=True),
        "step_rewards": list(one.step_rewards),
        "feedback": json.dumps([msgspec.to_builtins(given) for given in feedback], sort_keys=True),
        "success": one.facts.success,
        "facts": json.dumps(msgspec.to_builtins(one.facts), sort_keys=True),
        "task": json.dumps(one.task, sort_keys=True),
        "min_version": low,
        "max_version": high,
        "response_tokens": response_tokens(one),
        "steps": [_step(step, decode) for step in one.steps],
    }


def _step(step: Step, decode: Decode) -> Row:
    return {
        "index": step.step_index,
        "parent": step.parent,
        "prompt_ids": unpack_ids(step.prompt_ids).tolist(),
        "response_ids": unpack_ids(step.response_ids).tolist(),
        "logprobs": unpack_floats(step.logprobs).tolist(),
        "versions": [list(run) for run in step.versions],
        "temperature": step.temperature,
        "finish_reason": step.finish_reason,
        "fork_reason": step.fork_reason,
        "images": step.images,
        "prompt": decode(step.prompt_ids),
        "response": decode(step.response_ids),
    }


def trajectory(row: Row) -> Trajectory:
    """A native row back as the trajectory it was, token by token."""
    uid = row["uid"]
    steps = [
        Step(
            trajectory_uid=uid,
            step_index=one["index"],
            prompt_ids=pack_ids(one["prompt_ids"]),
            response_ids=pack_ids(one["response_ids"]),
            logprobs=pack_floats(one["logprobs"]),
            versions=[(version, count) for version, count in one["versions"]],
            parent=one["parent"],
            finish_reason=one["finish_reason"],
            fork_reason=one["fork_reason"],
            images=list(one.get("images") or ()),
            temperature=one["temperature"],
        )
        for one in row["steps"]
    ]
    return Trajectory(
        uid=uid,
        prompt_uid=row["prompt_uid"],
        channel=row["channel"],
        steps=steps,
        status=row["status"],
        facts=msgspec.json.decode(row["facts"], type=Facts),
        reward=row["reward"],
        reward_parts=json.loads(row["reward_parts"]),
        step_rewards=list(row["step_rewards"]),
        env=row["env"],
        task=json.loads(row["task"]),
    )


def context(steps: Sequence[Step], step: Step) -> bytes:
    """All the tokens the engine saw before it sampled `step`: its chain of parents, then its own prompt."""
    by_index = {one.step_index: one for one in steps}
    parts = [step.prompt_ids]
    while step.parent >= 0:
        step = by_index[step.parent]
        parts += [step.response_ids, step.prompt_ids]
    return b"".join(reversed(parts))
