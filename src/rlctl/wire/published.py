"""The folder in which weights travel from the trainer to the engines, on disk that both see.

    PUBLISHED.json               {"version", "sha256": {FILE: hex, ...}}: every file that counts
    model.safetensors            whole weights, under their Hugging Face names; or
    adapter_model.safetensors    LoRA's A and B with adapter_config.json, both as peft writes them, and
    base.json                    {"path", "sha256": {FILE: hex, ...}, "dtype"}: the model folder that they stand on

Written by the trainer, read by every engine; standard library only.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PUBLISHED = "PUBLISHED.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
BASE = "base.json"


class Unusable(Exception):
    """A folder, or the base it names, is not what it says; the message is for people."""


@dataclass(frozen=True)
class Base:
    """The whole model that adapters stand on."""

    path: str
    """Its folder."""
    sha256: dict[str, str]
    """Of the files that hold its weights: what tells it from another model, wherever it lies."""
    dtype: str
    """What trainer and engines compute in: merged weights are of this type."""


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class Checksums:
    """sha256 of large files that stay: a file is read again only when its size or time has changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def of(self, file: Path) -> str:
        stat = file.stat()
        key = str(file), stat.st_size, stat.st_mtime_ns
        if key not in self._known:
            self._known[key] = sha256(file)
        return self._known[key]


# ---------------------------------------------------------------- publications


def announce(folder: Path, version: int, files: Sequence[str]) -> str:
    """Write PUBLISHED.json for `files`; the checksum of the first of them, which engines answer with."""
    sums = {name: sha256(folder / name) for name in files}
    (folder / PUBLISHED).write_text(json.dumps({"version": version, "sha256": sums}), encoding="utf-8")
    return sums[files[0]]


def promised(folder: Path, version: int) -> dict[str, str]:
    """File -> sha256 of what was published as `version` in `folder`; Unusable when that is not what it says."""
    try:
        announced = json.loads((folder / PUBLISHED).read_text(encoding="utf-8"))
        said, sums = announced["version"], dict(announced["sha256"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unusable(f"{folder} is no published folder: {type(error).__name__}: {error}") from error
    if said != version:
        raise Unusable(f"{folder} was published as version {said}, not {version}")
    if not {WEIGHTS, ADAPTER} & set(sums):
        raise Unusable(f"{folder / PUBLISHED} names neither {WEIGHTS} nor {ADAPTER}")
    return sums


def check(folder: Path, sums: dict[str, str], checksums: Checksums | None = None) -> None:
    """Unusable unless the files of `folder` have these sums."""
    for name, expected in sums.items():
        try:
            found = (checksums.of if checksums else sha256)(folder / name)
        except OSError as error:
            raise Unusable(f"{folder / name} cannot be read: {error}") from error
        if found != expected:
            raise Unusable(f"{folder / name}: sha256 is {found}, {expected} was promised")


# ---------------------------------------------------------------- the base of adapters


def write_base(folder: Path, base: Base) -> None:
    (folder / BASE).write_text(json.dumps(asdict(base), indent=1) + "\n", encoding="utf-8")


def read_base(folder: Path) -> Base:
    """The base of the adapters in `folder`; Unusable when none is named."""
    try:
        return Base(**json.loads((folder / BASE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Unusable(f"{folder} names no base of its adapters: {type(error).__name__}: {error}") from error


def check_base(base: Base, checksums: Checksums) -> None:
    """Unusable unless the folder that `base` names holds its weights."""
    try:
        check(Path(base.path), base.sha256, checksums)
    except Unusable as error:
        raise Unusable(
            f'the base of the adapters is not where they say: {error} (sync.lora = "merged" publishes whole weights)'
        ) from error


def model_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, as transformers chooses them; none where it has no such files."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        return []
    index: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [folder / name for name in sorted(set(index["weight_map"].values()))]
