"""Published weights: read from disk, verified, and checked against the model before anything is replaced."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from rlctl.errors import RlctlError
from rlctl.models.adapters import merged, read
from rlctl.wire.published import ADAPTER, WEIGHTS, Checksums, Unusable, check, check_base, promised, read_base


class BadWeights(RlctlError):
    """A published folder that cannot be used; the weights before it stay."""


class Reader:
    """Reads published folders; knows from one to the next that the base of adapters is what it should be."""

    def __init__(self) -> None:
        self._checksums = Checksums()

    def read(self, folder: Path, version: int) -> tuple[dict[str, torch.Tensor], str]:
        """All weights of a published folder, and the checksum of the file that holds them.

        BadWeights when anything about it is not as announced.
        """
        try:
            sums = promised(folder, version)
            if ADAPTER not in sums:
                return _whole(folder / WEIGHTS, sums[WEIGHTS]), sums[WEIGHTS]
            check(folder, sums)
            base = read_base(folder)
            check_base(base, self._checksums)
            return dict(merged(read(folder), base)), sums[ADAPTER]
        except Unusable as error:
            raise BadWeights(str(error)) from error


def _whole(file: Path, expected: str) -> dict[str, torch.Tensor]:
    """Its tensors, from one reading of the file."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadWeights(f"{file} cannot be read: {error}") from error
    if (checksum := hashlib.sha256(data).hexdigest()) != expected:
        raise BadWeights(f"{file}: sha256 is {checksum}, {expected} was promised")
    try:
        return load_safetensors(data)
    except SafetensorError as error:
        raise BadWeights(f"{file} does not decode: {error}") from error


class Expected:
    """Names and shapes of a model's weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._shapes = {name: weight.shape for name, weight in model.state_dict().items()}
        self._tied = set(getattr(model, "all_tied_weights_keys", ()))
        """Copies of another weight, which may be left out."""

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """BadWeights when a weight is missing, unknown, or of another shape."""
        for name, shape in self._shapes.items():
            if name not in weights:
                if name not in self._tied:
                    raise BadWeights(f"weight {name} is missing")
            elif weights[name].shape != shape:
                raise BadWeights(f"weight {name} is {list(weights[name].shape)}, the model's is {list(shape)}")
        if unknown := sorted(set(weights) - set(self._shapes)):
            raise BadWeights(f"weight {unknown[0]} is unknown to the model")
