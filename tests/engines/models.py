"""Small random models of several architectures, and what transformers says about a finished sequence."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlctl.engines.embedded.general import General
from rlctl.engines.embedded.generator import Generator
from rlctl.engines.embedded.lean import Lean, fits
from rlctl.engines.embedded.sequences import Sampling, Sequence

VOCABULARY = 40
CONTEXT = 96
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}
"""Weights far from zero, so that logits differ a lot between contexts."""
CONFIGS: dict[str, Any] = {
    "qwen2": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "qwen2-untied": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "llama-scaled": lambda: LlamaConfig(
        **_SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=None),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.3
    ),
}


def make(kind: str = "qwen2", seed: int = 0) -> Any:
    """A random model, float32, biases and norms random too (transformers would leave them at 0 and 1)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation="sdpa").eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 1:
                    weight.copy_(torch.rand_like(weight) + (0.5 if "norm" in name or "ln_" in name else -0.5))
    return model


def generator(model: Any, max_running: int = 8, cache_tokens: int = 4096, general: bool = False) -> Generator:
    forward = General(model, CONTEXT) if general or not fits(model.config) else Lean(model, CONTEXT)
    return Generator(forward, CONTEXT, max_running, cache_tokens)


def sequence(prompt: list[int] | np.ndarray, session: str = "", **sampling: Any) -> Sequence:
    return Sequence(np.asarray(prompt, dtype=np.int32), Sampling(**sampling), session)


def finish(running: Generator, *sequences: Sequence) -> None:
    for one in sequences:
        running.add(one)
    while running.busy:
        running.step()


def reference(model: Any, one: Sequence, temperature: float = 1.0) -> np.ndarray:
    """Log-probability of each response token by one full transformers forward pass, float32 `[R]`."""
    ids = torch.tensor(one.ids(0, one.length)[None].astype(np.int64))
    with torch.inference_mode():
        logprobs = (model(ids).logits[0].float() / temperature).log_softmax(-1)
    first = len(one.prompt)
    return np.array([logprobs[first - 1 + i, token].item() for i, token in enumerate(one.response)], dtype=np.float32)


def publish(model: Any, folder: Path, version: int) -> str:
    """Write a model as the trainer publishes it; the checksum."""
    folder.mkdir(parents=True)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors")
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    announced = {"version": version, "sha256": {"model.safetensors": checksum}}
    (folder / "PUBLISHED.json").write_text(json.dumps(announced))
    return checksum
