"""From a configuration to a `Generator`."""

import logging
from typing import Any

import torch

from rlctl.config import Config
from rlctl.engines.embedded.completions import Texts
from rlctl.engines.embedded.general import General
from rlctl.engines.embedded.generator import Generator
from rlctl.engines.embedded.lean import Lean, fits
from rlctl.errors import ConfigError
from rlctl.models.load import load_configured
from rlctl.telemetry.memory import keep_freed_memory

log = logging.getLogger(__name__)


def device_of(config: Config) -> torch.device:
    """`deploy.device`, with auto resolved."""
    wanted = config.deploy.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('deploy.device = "cuda": torch sees no CUDA device')
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def build(config: Config, tokenizer: Any, seed: int) -> tuple[Generator, Texts]:
    """Load `config.model_dir` and put a generator around it; ends of turns as the generation config says."""
    torch.set_num_threads(config.engine.threads)
    keep_freed_memory()
    model = load_configured(config.model, config.model_dir, device_of(config))
    context = config.model.max_context
    forward = Lean(model, context) if fits(model.config) else General(model, context)
    log.info("%s on %s by the %s forward", type(model).__name__, forward.shape.device, type(forward).__name__.lower())
    texts = Texts(tokenizer, model.get_input_embeddings().num_embeddings, ends(model, tokenizer), context)
    engine = config.engine
    return Generator(forward, context, engine.max_running, engine.cache_tokens, seed, texts.decode), texts


def ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a response: the generation config's and the tokenizer's eos."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    found = configured if isinstance(configured, list) else [configured]
    return frozenset(int(i) for i in [*found, tokenizer.eos_token_id] if i is not None)
