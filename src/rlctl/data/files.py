"""Datasets as files: JSON lines or Parquet by suffix, the same bytes for the same rows, with a manifest beside them."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import rlctl
from rlctl.data.rows import Row
from rlctl.disk.files import write_text, write_whole
from rlctl.errors import ConfigError, RlctlError

BATCH = 1000
"""Rows of one Parquet row group."""


def write(path: Path, rows: Iterable[Row], about: dict[str, Any]) -> dict[str, Any]:
    """Write the file and FILE.manifest.json {"rows", "sha256", "rlctl", **about}; returns the manifest."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{path}: the name must end in .jsonl or .parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    fill = _write_lines if path.suffix == ".jsonl" else write_parquet
    count = write_whole(path, lambda file: fill(file, rows), durable=True)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest = {"file": path.name, "rows": count, "sha256": digest, "rlctl": rlctl.__version__, **about}
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    write_text(path.with_name(path.name + ".manifest.json"), text, durable=True)
    return manifest


def _write_lines(path: Path, rows: Iterable[Row]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
            count += 1
    return count


def write_parquet(path: Path, rows: Iterable[Row]) -> int:
    """The rows as Parquet, types by the first of them; returns how many. Not atomic (see `write`)."""
    pyarrow, parquet = _pyarrow()
    remaining, count, writer = iter(rows), 0, None
    try:
        while some := list(islice(remaining, BATCH)):
            table = pyarrow.Table.from_pylist(some, schema=writer.schema if writer else _schema(pyarrow, some[0]))
            writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
            count += len(some)
        if writer is None:
            parquet.write_table(pyarrow.table({}), path)
    finally:
        if writer:
            writer.close()
    return count


def _schema(pyarrow: Any, row: Row) -> Any:
    """Types by the first row; what a row may lack (None, an empty list) has its type by name."""
    named = {
        "reward": pyarrow.float64(),
        "step_rewards": pyarrow.list_(pyarrow.float64()),
        "steps": pyarrow.list_(
            pyarrow.struct(
                [
                    ("index", pyarrow.int32()),
                    ("parent", pyarrow.int32()),
                    ("prompt_ids", pyarrow.list_(pyarrow.int32())),
                    ("response_ids", pyarrow.list_(pyarrow.int32())),
                    ("logprobs", pyarrow.list_(pyarrow.float32())),
                    ("versions", pyarrow.list_(pyarrow.list_(pyarrow.int32()))),
                    ("temperature", pyarrow.float64()),
                    ("finish_reason", pyarrow.string()),
                    ("fork_reason", pyarrow.string()),
                    ("images", pyarrow.list_(pyarrow.string())),
                    ("prompt", pyarrow.string()),
                    ("response", pyarrow.string()),
                ]
            )
        ),
    }
    inferred = pyarrow.Table.from_pylist([row]).schema
    return pyarrow.schema([(field.name, named.get(field.name, field.type)) for field in inferred])


def read(path: Path) -> Iterator[tuple[int, Row]]:
    """(line or row number from 1, row); ConfigError for a file that is no dataset."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix == ".parquet":
        pyarrow, parquet = _pyarrow()
        try:
            batches = parquet.ParquetFile(path).iter_batches(BATCH)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        except pyarrow.ArrowInvalid as error:
            raise ConfigError(f"{path}: {error}") from error
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
            if row is not None:
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}:{number}: a row is a JSON object, not {type(row).__name__}")
                yield number, row


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RlctlError(f"Parquet needs pyarrow: pip install 'rlctl[data]' ({error})") from error
    return pyarrow, pyarrow.parquet
