"""From rows as they came to the files that are asked for: order (curriculum) and form.

jsonl, parquet               our rows: one whole chat per line, {"messages": [...], ...}
ragen-jsonl, ragen-parquet   RAGEN's (its prefix `message`): a row per answer, {"prompt": [messages before], "response"}

Orders: `none` that of the seeds; `sorted` by plan length; `bucketed` by plan length in buckets 1, 2-3, 4-7, 8-15, ...,
each in the order of the seeds: short plans first, and within a bucket not the same length over and over.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rlctl.data.files import write_parquet
from rlctl.disk.files import write_whole
from rlctl.sftgen.rows import Row

FORMATS = ("jsonl", "parquet", "ragen-jsonl", "ragen-parquet")
CURRICULA = ("none", "sorted", "bucketed")


def suffix(form: str) -> str:
    return ".parquet" if form.endswith("parquet") else ".jsonl"


def shape(partial: Path, path: Path, form: str, curriculum: str) -> None:
    """Write `path` (whole, or not at all) from the JSON lines of `partial`."""
    write_whole(path, lambda file: _fill(file, partial, form, curriculum), durable=True)


def _fill(path: Path, partial: Path, form: str, curriculum: str) -> None:
    if form == "jsonl" and curriculum == "none":
        _another_name(path, partial)
    elif form == "jsonl":
        with path.open("wb") as file:
            file.writelines(ordered(partial, curriculum))
    else:
        rows = map(msgspec.json.Decoder(Row).decode, ordered(partial, curriculum))
        shaped = (ragen(row) for row in rows) if form.startswith("ragen") else ([msgspec.to_builtins(r)] for r in rows)
        flat = (row for some in shaped for row in some)
        if suffix(form) == ".parquet":
            write_parquet(path, flat)
        else:
            with path.open("wb") as file:
                file.writelines(msgspec.json.encode(row) + b"\n" for row in flat)


def _another_name(path: Path, partial: Path) -> None:
    """What is on disk already need not be written again; a copy, where the file system has no links."""
    path.unlink(missing_ok=True)
    try:
        path.hardlink_to(partial)
    except OSError:
        shutil.copyfile(partial, path)


def ordered(partial: Path, curriculum: str) -> Iterator[bytes]:
    """The lines; only their places are kept in memory."""
    with partial.open("rb") as file:
        if curriculum == "none":
            yield from file
            return
        decode, places, start = msgspec.json.Decoder(_Length).decode, [], 0
        for line in file:
            length = decode(line).plan_length
            places.append((length if curriculum == "sorted" else length.bit_length(), start))
            start += len(line)
        for _, start in sorted(places):
            file.seek(start)
            yield file.readline()


def ragen(row: Row) -> list[dict[str, Any]]:
    """Rows with the fields of RAGEN's generator; `ground_truth` is the constant that it writes, the split is right."""
    return [
        {
            "data_source": row.env,
            "prompt": row.messages[:place],
            "response": message["content"],
            "ability": "bfs",
            "reward_model": {"style": "rule", "ground_truth": {"target": 0, "numbers": [0, 0]}},
            "extra_info": {"split": row.split, "index": row.seed},
        }
        for place, message in enumerate(row.messages)
        if message["role"] == "assistant"
    ]


class _Length(msgspec.Struct):
    plan_length: int
