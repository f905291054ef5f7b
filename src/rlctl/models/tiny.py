"""`[model] init = "tiny"`: a small Qwen2 model and its tokenizer, made on the spot, deterministic by seed."""

from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from rlctl.config.learning import Tiny
from rlctl.models.load import quiet
from rlctl.models.vocabulary import build_tokenizer


def build_tiny(folder: Path, tiny: Tiny, max_context: int, seed: int) -> None:
    """Write an untrained model (float32, tied embeddings) and its tokenizer to `folder` in Hugging Face layout.

    The same arguments give the same bytes; torch's global random state is left as it was.
    """
    tokenizer = build_tokenizer(max_context)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["pad_token_id"] = tokenizer.pad_token_id
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.mlp,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.heads,
        max_position_embeddings=max_context,
        tie_word_embeddings=True,
        initializer_range=tiny.init_std,
        dtype="float32",
        **ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
