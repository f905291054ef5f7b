"""Checks on a published folder before a running engine lets go of its weights."""

import json
import struct
from pathlib import Path

from rlctl.wire.published import ADAPTER, WEIGHTS, Checksums, Unusable, check, check_base, promised, read_base

Shapes = dict[str, tuple[int, ...]]


class Refused(Exception):
    """The engine keeps its weights; `status` is the HTTP answer."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


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


def verify(folder: Path, version: int, expected: Shapes, checksums: Checksums) -> tuple[str, Shapes]:
    """The checksum of what is published in `folder`, and the shapes of the model that it makes.

    It and `version` agree with PUBLISHED.json, the tensors (of adapters: their base's) with `expected`, those of the
    model served so far; empty: not known. Tensors beyond those are vLLM's to judge (a tied output layer may or may not
    be written). Raises Refused.
    """
    try:
        sums = promised(folder, version)
        check(folder, sums)
        if ADAPTER not in sums:
            checksum, new = sums[WEIGHTS], shapes(folder)
        else:
            base = read_base(folder)
            check_base(base, checksums)
            checksum, new = sums[ADAPTER], shapes(Path(base.path))
            _check_adapters(folder, new)
    except Unusable as error:
        raise Refused(str(error)) from error
    for name, shape in expected.items():
        if new.get(name) != shape:
            raise Refused(f"{folder}: {name} has shape {new.get(name)}, the model served has {shape}")
    return checksum, new


def _check_adapters(folder: Path, base: Shapes) -> None:
    """Refused or Unusable unless all that is in `folder` can be merged into weights of these shapes."""
    from rlctl.models.adapters import read

    for name, (a, b) in read(folder).pairs.items():
        if base.get(name) != (shape := (b.shape[0], a.shape[1])):
            raise Refused(f"{folder}: the adapter of {name} is for a weight {shape}, the base has {base.get(name)}")
