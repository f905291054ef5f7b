"""Forward pass of any other causal language model of transformers, over the same KV cache."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from rlctl.engines.embedded.kv import Running, Shape
from rlctl.engines.embedded.lean import causal_mask
from rlctl.errors import ConfigError


class _Rows:
    """What transformers' attention modules see as their cache during one forward pass."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, cache: Running, rows: Tensor, positions: Tensor, length: int, dense: bool) -> None:
        self.cache, self.rows, self.positions, self.length, self.dense = cache, rows, positions, length, dense

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        kv = torch.cat([keys, values], 1).transpose(1, 2)
        return self.cache.write(layer, self.rows, self.positions, kv, self.length, self.dense)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return self.length, 0

    def __len__(self) -> int:
        return self.cache.shape.layers


class General:
    """Same face as `Lean`, for models with full attention and equal key and value widths."""

    def __init__(self, model: Any, max_context: int) -> None:
        self.model = model
        limit = getattr(model.config, "max_position_embeddings", max_context)
        if limit < max_context:
            raise ConfigError(f"model.max_context = {max_context}: this model has {limit} positions")
        self.shape = _probe(model)
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights, by transformers' names; KeyError when one is missing."""
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = set(self.model.all_tied_weights_keys)
        if lost := [name for name in missing if name not in tied]:
            raise KeyError(lost[0])
        if unexpected:
            raise KeyError(f"{unexpected[0]} (unknown to the model)")

    def forward(
        self, ids: Tensor, positions: Tensor, rows: Tensor, last: Tensor, length: int, cache: Running, dense: bool
    ) -> Tensor:
        """As `Lean.forward`."""
        kept = last.unique()
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=causal_mask(positions, length, self.shape.dtype),
            past_key_values=_Rows(cache, rows, positions, length, dense),
            use_cache=True,
            **({"logits_to_keep": kept} if self._keeps else {}),
        )
        at = torch.searchsorted(kept, last) if self._keeps else last
        return output.logits[torch.arange(len(ids), device=ids.device), at]


def _probe(model: Any) -> Shape:
    """Layers, heads and widths, from one token's KV: configs name them in too many ways."""
    weight = model.get_input_embeddings().weight
    with torch.inference_mode():
        output = model(torch.zeros(1, 1, dtype=torch.long, device=weight.device), use_cache=True)
    cache = output.past_key_values
    if not isinstance(cache, DynamicCache) or any(type(layer).__name__ != "DynamicLayer" for layer in cache.layers):
        raise ConfigError(
            f"the embedded engine needs full attention in every layer of {type(model).__name__}; use vllm"
        )
    shapes = {tuple(t.shape) for layer in cache.layers for t in (layer.keys, layer.values)}
    if len(shapes) != 1:
        raise ConfigError(f"the embedded engine needs keys and values of one width in {type(model).__name__}; use vllm")
    _, heads, _, width = shapes.pop()
    return Shape(len(cache.layers), heads, width, weight.dtype, weight.device)
