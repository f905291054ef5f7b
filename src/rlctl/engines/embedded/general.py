"""Forward pass of any other causal language model of transformers, over the same KV cache."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlctl.engines.embedded.kv import Inputs, Running, Shape
from rlctl.engines.embedded.lean import causal_mask
from rlctl.engines.embedded.weights import Expected
from rlctl.errors import ConfigError


class _Rows:
    """What transformers' attention modules see as their cache during one forward pass."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, cache: Running, inputs: Inputs) -> None:
        self.cache, self.inputs = cache, inputs

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.cache.write(layer, torch.cat([keys, values], 1).transpose(1, 2), self.inputs)
        return self.cache.all(layer, self.inputs)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return self.inputs.length, 0

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
        self._expected = Expected(model)
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights, by transformers' names; BadWeights (and nothing changed) when they do not fit."""
        self._expected.check(weights)
        self.model.load_state_dict(weights, strict=False)

    def forward(self, inputs: Inputs, cache: Running) -> Tensor:
        """As `Lean.forward`."""
        kept = inputs.last.unique()
        output = self.model(
            input_ids=inputs.ids,
            position_ids=inputs.positions,
            attention_mask=causal_mask(inputs.positions, inputs.length, self.shape.dtype).unsqueeze(1),
            past_key_values=_Rows(cache, inputs),
            use_cache=True,
            **({"logits_to_keep": kept} if self._keeps else {}),
        )
        at = torch.searchsorted(kept, inputs.last) if self._keeps else inputs.last
        return output.logits[torch.arange(len(at), device=at.device), at]


def _probe(model: Any) -> Shape:
    """Layers, heads and widths, from one token's KV: configs name them in too many ways."""
    weight = model.get_input_embeddings().weight
    with torch.inference_mode():
        output = model(torch.zeros(1, 1, dtype=torch.long, device=weight.device), use_cache=True)
    cache: Any = output.past_key_values
    plain = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
    if not plain:
        raise ConfigError(
            f"the embedded engine needs full attention in every layer of {type(model).__name__}; use vllm"
        )
    shapes = {tuple(t.shape) for layer in output.past_key_values.layers for t in (layer.keys, layer.values)}
    if len(shapes) != 1:
        raise ConfigError(f"the embedded engine needs keys and values of one width in {type(model).__name__}; use vllm")
    _, heads, _, width = shapes.pop()
    return Shape(len(cache.layers), heads, width, weight.dtype, weight.device)
