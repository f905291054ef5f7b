"""Published weights: read from disk, verified, and checked against the model before anything is replaced."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from rlctl.errors import RlctlError

WEIGHTS = "model.safetensors"


class BadWeights(RlctlError):
    """A published folder that cannot be used; the weights before it stay."""


def read_published(folder: Path, version: int) -> tuple[dict[str, torch.Tensor], str]:
    """Weights of a published folder and their sha256; BadWeights when anything about it is not as announced."""
    try:
        announced = json.loads((folder / "PUBLISHED.json").read_text(encoding="utf-8"))
        expected, said = announced["sha256"][WEIGHTS], announced["version"]
        data = (folder / WEIGHTS).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"not a published folder: {type(error).__name__}: {error}") from error
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != expected:
        raise BadWeights(f"{WEIGHTS} has sha256 {checksum}, PUBLISHED.json says {expected}")
    if said != version:
        raise BadWeights(f"PUBLISHED.json says version {said}, asked for {version}")
    try:
        return load_safetensors(data), checksum
    except SafetensorError as error:
        raise BadWeights(f"{WEIGHTS} does not decode: {error}") from error


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
