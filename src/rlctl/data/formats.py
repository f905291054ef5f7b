"""Rows in the shape that other trainers read. The source travels along in `provenance` (JSON) or `extra_info`.

native    one row per trajectory, exact tokens (see `rows.native`)
trl-sft   one row per Step: {"prompt", "completion"} as text with special tokens (TRL's prompt-completion format)
trl-dpo   one row per pair of one prompt with different rewards, the best against each worse one: {"prompt", "chosen",
          "rejected"}; trajectories of one Step only, for a longer one has no single answer to compare
verl      one row per prompt: {"data_source", "prompt": [messages], "ability", "reward_model", "extra_info"}
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlctl.data.choose import versions
from rlctl.data.rows import Decode, Row, Source, context, native
from rlctl.errors import RlctlError
from rlctl.wire.messages import Feedback
from rlctl.wire.samples import Ended, Trajectory

FORMATS = ("native", "trl-sft", "trl-dpo", "verl")


def shaped(
    ended: Iterable[Ended], form: str, where: Source, decode: Decode, feedback: Mapping[str, Sequence[Feedback]]
) -> Iterator[Row]:
    """Rows of `form`, in the order of `ended`; `feedback` by trajectory, in native rows."""
    if form != "native":
        ended = _of_text(ended, form)
    if form == "native":
        yield from (native(one, where, decode, feedback.get(one.trajectory.uid, ())) for one in ended)
    elif form == "trl-sft":
        yield from (row for one in ended for row in _completions(one.trajectory, where, decode))
    elif form == "trl-dpo":
        yield from _pairs(ended, where, decode)
    else:
        yield from _prompts(ended, where, decode)


def _of_text(ended: Iterable[Ended], form: str) -> Iterator[Ended]:
    """The same; RlctlError at the first trajectory with images, which these formats have no place for."""
    for one in ended:
        if any(step.images for step in one.trajectory.steps):
            uid = one.trajectory.uid
            raise RlctlError(f"trajectory {uid} has images, and {form} rows are text: export them as native rows")
        yield one


def _provenance(one: Trajectory, where: Source) -> dict[str, Any]:
    low, high = versions(one)
    return {
        "run": where.run,
        "config_hash": where.config_hash,
        "uid": one.uid,
        "env": one.env,
        "policy_versions": [low, high],
        "reward": one.reward,
        "reward_parts": one.reward_parts,
    }


def _completions(one: Trajectory, where: Source, decode: Decode) -> Iterator[Row]:
    provenance = json.dumps(_provenance(one, where), sort_keys=True)
    for step in one.steps:
        prompt = decode(context(one.steps, step))
        yield {"prompt": prompt, "completion": decode(step.response_ids), "provenance": provenance}


def _pairs(ended: Iterable[Ended], where: Source, decode: Decode) -> Iterator[Row]:
    groups: dict[tuple[str, bytes], list[Trajectory]] = {}
    for one in ended:
        if len(one.trajectory.steps) == 1 and one.trajectory.reward is not None:
            key = (one.trajectory.prompt_uid, one.trajectory.steps[0].prompt_ids)
            groups.setdefault(key, []).append(one.trajectory)
    for (_, prompt), members in groups.items():
        best, *rest = sorted(members, key=lambda t: (-(t.reward or 0.0), t.uid))
        for worse in rest:
            if worse.reward == best.reward:
                continue
            provenance = {"chosen": _provenance(best, where), "rejected": _provenance(worse, where)}
            yield {
                "prompt": decode(prompt),
                "chosen": decode(best.steps[0].response_ids),
                "rejected": decode(worse.steps[0].response_ids),
                "provenance": json.dumps(provenance, sort_keys=True),
            }


def _prompts(ended: Iterable[Ended], where: Source, decode: Decode) -> Iterator[Row]:
    seen: set[str] = set()
    for number, one in enumerate(ended):
        trajectory = one.trajectory
        if trajectory.prompt_uid in seen or not trajectory.steps:
            continue
        seen.add(trajectory.prompt_uid)
        question = trajectory.task.get("question") or decode(trajectory.steps[0].prompt_ids)
        extra = _provenance(trajectory, where) | {"index": number, "task": trajectory.task}
        yield {
            "data_source": trajectory.env or where.run,
            "prompt": [{"role": "user", "content": question}],
            "ability": trajectory.env,
            "reward_model": {"style": "rule", "ground_truth": trajectory.task.get("ground_truth", "")},
            "extra_info": json.dumps(extra, sort_keys=True),
        }
