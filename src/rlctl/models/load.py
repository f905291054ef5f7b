"""The one way a policy is loaded: by trainer and engine alike, so that both compute with the same numbers."""

import sys
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rlctl.config.learning import Model
from rlctl.errors import ConfigError
from rlctl.models.paths import check_model_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_policy(
    path: str,
    dtype: str = "float32",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    revision: str = "",
    device: str | torch.device = "cpu",
    quantization: Any = None,
) -> Any:
    """The causal language model at `path` (folder or Hugging Face id), in eval mode on `device`.

    `quantization`: transformers' settings of a quantizer, which works while it loads.
    Raises ConfigError when there is no such model or transformers cannot make one of it.
    """
    check_model_path(path, revision)
    quiet()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
            revision=revision or "main",
            **({"quantization_config": quantization, "device_map": {"": device}} if quantization else {}),
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model.path = {path!r} cannot be loaded: {error}") from error
    return (model if quantization else model.to(device)).eval()


def quiet() -> None:
    """transformers' progress bars are for terminals, not for log files."""
    if not sys.stderr.isatty():
        disable_progress_bar()


def load_model_config(path: str, trust_remote_code: bool = False, revision: str = "") -> Any:
    """The configuration of the model at `path`; ConfigError when there is none."""
    check_model_path(path, revision)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path = {path!r}: its configuration cannot be read: {error}") from error


def load_configured(model: Model, path: str, device: str | torch.device = "cpu") -> Any:
    """`load_policy` with the settings of the [model] section; `path` is `Config.model_dir`."""
    return load_policy(path, model.dtype, model.attention, model.trust_remote_code, model.revision, device)


def load_tokenizer(path: str, trust_remote_code: bool = False, revision: str = "") -> Any:
    """The tokenizer at `path`; ConfigError when there is none."""
    check_model_path(path, revision)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, revision=revision or "main")
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model.path = {path!r}: its tokenizer cannot be loaded: {error}") from error
