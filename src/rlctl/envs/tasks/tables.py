"""Rows of a data set: a local file or folder (JSONL, JSON, Parquet), or an id of the Hugging Face hub."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlctl.errors import ConfigError, RlctlError

Row = Mapping[str, Any]
KINDS = (".jsonl", ".json", ".parquet")


def rows(path: str, subset: str, split: str) -> Iterable[Row]:
    """The rows of `split`: of the file PATH, of PATH/SPLIT.{jsonl,json,parquet} in a folder, else of the hub."""
    there = Path(path).expanduser()
    if there.is_dir():
        return _file(_member(there, split))
    if there.is_file():
        return _file(there)
    if there.suffix in KINDS or path.startswith((".", "/", "~")):
        raise ConfigError(f"{path}: no such file or folder of questions")
    return _hub(path, subset, split)


def _member(folder: Path, split: str) -> Path:
    for kind in KINDS:
        if (file := folder / f"{split}{kind}").is_file():
            return file
    names = ", ".join(sorted(file.name for file in folder.iterdir() if file.suffix in KINDS)) or "no data files"
    raise ConfigError(f"{folder}: no {split}{{{','.join(KINDS)}}} (there are: {names})")


def _file(file: Path) -> Iterable[Row]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        found: list[Row] = pyarrow.parquet.read_table(file).to_pylist()
        return found
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return _json(text, str(file))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [_json(line, f"{file}:{number}") for number, line in lines]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None


def _hub(path: str, subset: str, split: str) -> Iterable[Row]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            f"{path} is no local file, and data sets of the hub need a package: pip install 'rlctl[train]'"
        ) from None
    try:
        found: Iterable[Row] = load_dataset(path, subset or None, split=split)
        return found
    except (OSError, ValueError, RuntimeError) as error:
        raise RlctlError(f"data set {path!r} ({subset or 'default'}, {split}) cannot be loaded: {error}") from error
