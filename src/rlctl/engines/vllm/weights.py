"""Checks on a published folder before a running engine lets go of its weights. Standard library only."""

import hashlib
import json
import struct
from pathlib import Path

WEIGHTS = "model.safetensors"
Shapes = dict[str, tuple[int, ...]]


class Refused(Exception):
    """The engine keeps its weights; `status` is the HTTP answer."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def shapes(folder: Path) -> Shapes:
    """Name -> shape of every tensor in the folder's safetensors files (their headers only)."""
    found: Shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as content:
            try:
                (length,) = struct.unpack("<Q", content.read(8))
                header = json.loads(content.read(length))
            except (struct.error, ValueError, MemoryError, OverflowError) as error:
                raise Refused(f"{file} is no safetensors file: {error}") from error
        found |= {name: tuple(item["shape"]) for name, item in header.items() if name != "__metadata__"}
    return found


def verify(folder: Path, version: int, expected: Shapes) -> str:
    """The sha256 of the folder's weights; it and `version` agree with PUBLISHED.json, the tensors with `expected`.

    `expected` are the tensors of the model served so far; empty: not known. Tensors beyond those are vLLM's to judge (a
    tied output layer may or may not be written). Raises Refused.
    """
    try:
        published = json.loads((folder / "PUBLISHED.json").read_text(encoding="utf-8"))
        promised, label = published["sha256"][WEIGHTS], published["version"]
        checksum = sha256(folder / WEIGHTS)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Refused(f"{folder} is no published folder: {type(error).__name__}: {error}") from error
    if checksum != promised:
        raise Refused(f"{folder / WEIGHTS}: sha256 is {checksum}, PUBLISHED.json says {promised}")
    if label != version:
        raise Refused(f"{folder} was published as version {label}, not {version}")
    new = shapes(folder)
    for name, shape in expected.items():
        if new.get(name) != shape:
            raise Refused(f"{folder / WEIGHTS}: {name} has shape {new.get(name)}, the model served has {shape}")
    return checksum
