"""From a configuration to a `Generator`, and from a published folder to weights."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from rlctl.config import Config
from rlctl.engines.embedded.general import General
from rlctl.engines.embedded.generator import Generator
from rlctl.engines.embedded.lean import Lean, fits
from rlctl.errors import ConfigError, RlctlError
from rlctl.models.load import load_configured

log = logging.getLogger(__name__)
WEIGHTS = "model.safetensors"


class BadWeights(RlctlError):
    """A published folder that cannot be used; the weights before it stay."""


def device_of(config: Config) -> torch.device:
    """`deploy.device`, with auto resolved."""
    wanted = config.deploy.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('deploy.device = "cuda": torch sees no CUDA device')
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def build(config: Config, tokenizer: Any, seed: int) -> Generator:
    """Load `config.model_dir` and put a generator around it."""
    torch.set_num_threads(config.engine.threads)
    if config.model.init and not Path(config.model_dir).is_dir():
        raise ConfigError(f"{config.model_dir}: the model is not there yet; `rlctl up` builds it before the engine starts")
    model = load_configured(config.model, config.model_dir, device_of(config))
    context = config.model.max_context
    forward = Lean(model, context) if fits(model.config) else General(model, context)
    log.info("%s on %s by the %s forward", type(model).__name__, forward.shape.device, type(forward).__name__.lower())
    return Generator(
        forward,
        context,
        config.engine.max_running,
        config.engine.cache_tokens,
        seed,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )


def read_published(folder: Path, version: int) -> tuple[dict[str, torch.Tensor], str]:
    """Weights of a published folder and their sha256; BadWeights when anything about it is not as announced."""
    try:
        announced = json.loads((folder / "PUBLISHED.json").read_text(encoding="utf-8"))
        expected, said = announced["sha256"][WEIGHTS], announced["version"]
        data = (folder / WEIGHTS).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{folder}: not a published folder: {type(error).__name__}: {error}") from error
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != expected:
        raise BadWeights(f"{folder}: {WEIGHTS} has sha256 {checksum}, PUBLISHED.json says {expected}")
    if said != version:
        raise BadWeights(f"{folder}: PUBLISHED.json says version {said}, asked for {version}")
    try:
        return load_safetensors(data), checksum
    except SafetensorError as error:
        raise BadWeights(f"{folder}: {WEIGHTS} does not decode: {error}") from error
