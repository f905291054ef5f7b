"""Datasets into a run: native rows as recorded batches (`train.replay`), others as demonstrations (`sft.data.path`).

{"uid", "steps", ...}             native: exact tokens, log-probabilities, rewards; groups by run and prompt
{"messages": [...]}               chat logs, and the training format of our own warm start
{"prompt", "completion"}          TRL prompt-completion, as text or as lists of messages
{"prompt", "chosen", ...}         TRL preferences: the chosen answer
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rlctl.data.files import read
from rlctl.data.rows import Row, trajectory
from rlctl.disk.files import write_whole
from rlctl.errors import ConfigError
from rlctl.wire import frames
from rlctl.wire.messages import Batch
from rlctl.wire.samples import Group, Trajectory


def load(path: Path, out: Path, groups_per_step: int) -> dict[str, Any]:
    """Write `out`; returns {"kind", "rows", ...}. ConfigError that names the row that cannot be used."""
    rows = list(read(path))
    if not rows:
        raise ConfigError(f"{path} has no rows")
    out.parent.mkdir(parents=True, exist_ok=True)
    if "steps" in rows[0][1]:
        return _batches(path, rows, out, groups_per_step)
    talks = ({"messages": _messages(path, number, row)} for number, row in rows)
    _write(out, ((json.dumps(talk, ensure_ascii=False) + "\n").encode() for talk in talks))
    return {"kind": "demonstrations", "rows": len(rows), "use": f'sft.data.path="{out}"'}


def _write(out: Path, parts: Iterable[bytes]) -> None:
    """All of it, or nothing where a part cannot be made."""

    def fill(path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(parts)

    write_whole(out, fill, durable=True)


def _batches(path: Path, rows: list[tuple[int, Row]], out: Path, groups_per_step: int) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    unrewarded = 0
    for number, row in rows:
        try:
            one = trajectory(row)
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}:{number}: not a native row: {error!r}") from error
        if one.reward is None:
            unrewarded += 1
            continue
        groups.setdefault((row["run"], one.prompt_uid), []).append(one)
    made = [Group(prompt, members[0].env, members) for (_, prompt), members in groups.items()]
    batches = [made[i : i + groups_per_step] for i in range(0, len(made), groups_per_step)]
    if batches and len(batches[-1]) < groups_per_step:
        batches.pop()
    if not batches:
        raise ConfigError(f"{path}: {len(made)} groups with rewards are fewer than --groups-per-step {groups_per_step}")
    named = (Batch(f"imported-{number}", some) for number, some in enumerate(batches, 1))
    _write(out, (frames.frame(msgspec.msgpack.encode(batch)) for batch in named))
    left = len(made) - len(batches) * groups_per_step
    return {
        "kind": "batches",
        "rows": len(rows),
        "steps": len(batches),
        "groups": len(made),
        "groups_left_over": left,
        "rows_without_reward": unrewarded,
        "use": f'train.replay="{out}"',
    }


def _messages(path: Path, number: int, row: Row) -> list[dict[str, str]]:
    if "messages" not in row and not ("prompt" in row and ("completion" in row or "chosen" in row)):
        raise ConfigError(f"{path}:{number}: has neither steps, nor messages, nor prompt with completion or chosen")
    try:
        if "messages" in row:
            found = list(_chat(row["messages"], ""))
        else:
            found = [*_chat(row["prompt"], "user"), *_chat(row.get("completion", row.get("chosen")), "assistant")]
    except TypeError as error:
        raise ConfigError(f"{path}:{number}: {error}") from error
    if not any(one["role"] == "assistant" for one in found):
        raise ConfigError(f"{path}:{number}: no answer of the assistant in it")
    return found


def _chat(value: Any, role: str) -> Iterator[dict[str, str]]:
    if isinstance(value, str) and role:
        yield {"role": role, "content": value}
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        yield from ({"role": str(one.get("role", "")), "content": str(one.get("content") or "")} for one in value)
    else:
        raise TypeError(f"messages must be a list of objects, not {type(value).__name__}")
