"""Forward pass of Llama-like decoders (Qwen2, Qwen3, Llama) with as few operations as possible.

For a small model the cost of a decode step is the number of operations, not their size. So projections with the same
input are one matrix, keys and values are written at once, rotation is three operations, and nothing is looked up by
name. The arithmetic is that of transformers' modules; `tests/engines/test_forward.py` holds the two together.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlctl.engines.embedded.kv import Inputs, Running, Shape
from rlctl.engines.embedded.weights import Expected

KINDS = ("llama", "qwen2", "qwen3")


def fits(config: Any) -> bool:
    """Whether this forward computes what transformers computes for such a config."""
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return (
        config.model_type in KINDS
        and config.hidden_act == "silu"
        and not sliding
        and rope in ("default", "linear", "llama3", "yarn")
    )


class Layer:
    """Weights of one decoder layer, projections with a common input joined.

    Where nothing stands between projection and rotation, the rolled queries and keys that the rotation needs are
    projected too: a few more columns of a matrix product cost less than moving halves of heads about."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, head_dim: int) -> None:
        def join(module: str, *names: str) -> tuple[Tensor, Tensor | None]:
            found = [f"{prefix}{module}.{name}" for name in names]
            matrix = torch.cat([weights[f"{name}.weight"] for name in found])
            if f"{found[0]}.bias" not in weights:
                return matrix, None
            return matrix, torch.cat([weights[f"{name}.bias"] for name in found])

        self.before_attention = weights[f"{prefix}input_layernorm.weight"]
        self.query_norm = weights.get(f"{prefix}self_attn.q_norm.weight")
        self.key_norm = weights.get(f"{prefix}self_attn.k_norm.weight")
        matrix, self.qkv_bias = join("self_attn", "q_proj", "k_proj", "v_proj")
        self.qkv = matrix
        if self.query_norm is None:
            turned = len(matrix) - len(weights[f"{prefix}self_attn.v_proj.weight"])
            self.qkv = torch.cat([_roll(matrix[:turned], head_dim), matrix])
            if self.qkv_bias is not None:
                self.qkv_bias = torch.cat([_roll(self.qkv_bias[:turned], head_dim), self.qkv_bias])
        self.out, self.out_bias = join("self_attn", "o_proj")
        self.before_mlp = weights[f"{prefix}post_attention_layernorm.weight"]
        self.gate_up, self.gate_up_bias = join("mlp", "gate_proj", "up_proj")
        self.down, self.down_bias = join("mlp", "down_proj")


def _roll(rows: Tensor, head_dim: int) -> Tensor:
    """The halves of every head exchanged, over dimension 0."""
    return rows.unflatten(0, (-1, head_dim)).roll(head_dim // 2, 1).flatten(0, 1)


class Lean:
    """A Llama-like model over a `Running` KV cache."""

    def __init__(self, model: Any, max_context: int) -> None:
        config = model.config
        self.heads = config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.mlp = config.intermediate_size
        self.eps = config.rms_norm_eps
        weight = model.get_input_embeddings().weight
        self.shape = Shape(
            config.num_hidden_layers, config.num_key_value_heads, self.head_dim, weight.dtype, weight.device
        )
        self._expected = Expected(model)
        self.load(model.state_dict())
        rotary = model.model.rotary_emb
        angles = torch.outer(torch.arange(max_context, device=weight.device).float(), rotary.inv_freq.float())
        cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
        self.cos = torch.cat([cos, cos], -1).to(weight.dtype)
        self.sin = torch.cat([-sin, sin], -1).to(weight.dtype)
        """Sign of rotate_half folded in: x * cos + roll(x) * sin."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights, by transformers' names; BadWeights (and nothing changed) when they do not fit."""
        self._expected.check(weights)
        moved = {name: w.to(self.shape.dtype).to(self.shape.device) for name, w in weights.items()}
        layers = [Layer(moved, f"model.layers.{i}.", self.head_dim) for i in range(self.shape.layers)]
        embedding, norm = moved["model.embed_tokens.weight"], moved["model.norm.weight"]
        self.layers, self.embedding, self.norm = layers, embedding, norm
        self.head = moved.get("lm_head.weight", embedding)

    def forward(self, inputs: Inputs, cache: Running) -> Tensor:
        """Logits `[B, V]` after the last token of each row; the KV of all tokens is written to `cache`."""
        positions, every = inputs.positions, torch.arange(len(inputs.rows), device=inputs.rows.device)
        turned = self.heads + self.shape.kv_heads
        cos, sin = self.cos[positions].repeat(1, 1, turned), self.sin[positions].repeat(1, 1, turned)
        masks = self._masks(inputs, positions)
        x = F.embedding(inputs.ids, self.embedding)
        for number, layer in enumerate(self.layers):
            q, kv = self._project(layer, rms_norm(x, layer.before_attention, self.eps), cos, sin)
            cache.write(number, kv, inputs)
            if x.shape[1] > 1 and layer is self.layers[-1]:  # only tokens whose logits are wanted count from here on
                x, q = x[every, inputs.last][:, None], q[every, inputs.last][:, None]
                masks = self._masks(inputs, positions[every, inputs.last][:, None])
            seen = [
                self._attend(q[run.start : run.stop], *cache.run(number, run), mask)
                for run, mask in zip(inputs.runs, masks, strict=True)
            ]
            x = x + F.linear(seen[0] if len(seen) == 1 else torch.cat(seen), layer.out, layer.out_bias)
            gate_up = F.linear(rms_norm(x, layer.before_mlp, self.eps), layer.gate_up, layer.gate_up_bias)
            h = F.silu(gate_up[..., : self.mlp]).mul_(gate_up[..., self.mlp :])
            x = x + F.linear(h, layer.down, layer.down_bias)
        return F.linear(rms_norm(x[:, 0], self.norm, self.eps), self.head)

    def _masks(self, inputs: Inputs, positions: Tensor) -> list[Tensor]:
        """Of every run `[rows, 1, n * heads / kv_heads, length]`, for tokens at `positions [B, n]`."""
        mask = causal_mask(positions, inputs.length, self.shape.dtype).unsqueeze(1)
        if (group := self.heads // self.shape.kv_heads) > 1:
            mask = mask.repeat(1, 1, group, 1)
        return [mask[run.start : run.stop, ..., : run.length] for run in inputs.runs]

    def _project(self, layer: Layer, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries `[B, n, heads, head_dim]`; rotated keys, and values, `[B, n, 2 * kv_heads, head_dim]`."""
        found = F.linear(h, layer.qkv, layer.qkv_bias)
        width = cos.shape[-1]
        start = found.shape[-1] - width - self.shape.kv_heads * self.head_dim
        qk = found[..., start : start + width]
        if layer.query_norm is None or layer.key_norm is None:
            rolled = found[..., :width]
        else:
            q, k = qk.unflatten(-1, (-1, self.head_dim)).split([self.heads, self.shape.kv_heads], 2)
            q.copy_(rms_norm(q, layer.query_norm, self.eps))
            k.copy_(rms_norm(k, layer.key_norm, self.eps))
            rolled = qk.unflatten(-1, (-1, self.head_dim)).roll(self.head_dim // 2, -1).flatten(2)
        qk.mul_(cos).addcmul_(rolled, sin)
        by_head = found[..., start:].unflatten(-1, (-1, self.head_dim))
        return by_head[:, :, : self.heads], by_head[:, :, self.heads :]

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attention of one run, `[B, n, heads * head_dim]`; the heads that share keys are taken together."""
        batch, n, _, width = q.shape
        kv_heads = keys.shape[1]
        q = q.view(batch, n, kv_heads, -1, width).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, width)
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return seen.view(batch, kv_heads, -1, n, width).permute(0, 3, 1, 2, 4).reshape(batch, n, -1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467).

    In float32 by way of the norm, which is one pass on CPU where torch's rms_norm is five."""
    if x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()).mul_(weight)


def causal_mask(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, n, length]`: 0 up to the token's own position, -inf after it."""
    places = torch.arange(length, device=positions.device)
    mask = torch.zeros(*positions.shape, length, dtype=dtype, device=positions.device)
    return mask.masked_fill_(places > positions[:, :, None], -torch.inf)
