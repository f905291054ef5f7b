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
    """Weights of one decoder layer, projections with a common input joined."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        def join(module: str, *names: str) -> tuple[Tensor, Tensor | None]:
            found = [f"{prefix}{module}.{name}" for name in names]
            matrix = torch.cat([weights[f"{name}.weight"] for name in found])
            if f"{found[0]}.bias" not in weights:
                return matrix, None
            return matrix, torch.cat([weights[f"{name}.bias"] for name in found])

        self.before_attention = weights[f"{prefix}input_layernorm.weight"]
        self.qkv, self.qkv_bias = join("self_attn", "q_proj", "k_proj", "v_proj")
        self.query_norm = weights.get(f"{prefix}self_attn.q_norm.weight")
        self.key_norm = weights.get(f"{prefix}self_attn.k_norm.weight")
        self.out, self.out_bias = join("self_attn", "o_proj")
        self.before_mlp = weights[f"{prefix}post_attention_layernorm.weight"]
        self.gate_up, self.gate_up_bias = join("mlp", "gate_proj", "up_proj")
        self.down, self.down_bias = join("mlp", "down_proj")


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
        layers = [Layer(moved, f"model.layers.{i}.") for i in range(self.shape.layers)]
        embedding, norm = moved["model.embed_tokens.weight"], moved["model.norm.weight"]
        self.layers, self.embedding, self.norm = layers, embedding, norm
        self.head = moved.get("lm_head.weight", embedding)

    def forward(self, inputs: Inputs, cache: Running) -> Tensor:
        """Logits `[B, V]` after the last token of each row; the KV of all tokens is written to `cache`."""
        batch, n = inputs.ids.shape
        positions = inputs.positions
        kv_heads, group = self.shape.kv_heads, self.heads // self.shape.kv_heads
        cos, sin = self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)
        mask = causal_mask(positions, inputs.length, self.shape.dtype).repeat(1, 1, group, 1)
        turned = self.heads + kv_heads
        x = F.embedding(inputs.ids, self.embedding)
        for number, layer in enumerate(self.layers):
            h = F.rms_norm(x, x.shape[-1:], layer.before_attention, self.eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(batch, n, -1, self.head_dim)
            qk = qkv[:, :, :turned]
            if layer.query_norm is not None:
                q = F.rms_norm(qk[:, :, : self.heads], (self.head_dim,), layer.query_norm, self.eps)
                k = F.rms_norm(qk[:, :, self.heads :], (self.head_dim,), layer.key_norm, self.eps)
                qk.copy_(torch.cat([q, k], 2))
            qk.copy_(torch.addcmul(qk * cos, qk.roll(self.head_dim // 2, -1), sin))
            keys, values = cache.write(number, qkv[:, :, self.heads :], inputs)
            q = qk[:, :, : self.heads]
            if n > 1 and layer is self.layers[-1]:  # from here on only the tokens whose logits are wanted count
                every = torch.arange(batch, device=x.device)
                x, q, n = x[every, inputs.last][:, None], q[every, inputs.last][:, None], 1
                mask = causal_mask(positions[every, inputs.last][:, None], inputs.length, x.dtype).repeat(
                    1, 1, group, 1
                )
            q = q.view(batch, n, kv_heads, group, self.head_dim)
            q = q.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * n, self.head_dim)
            seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            seen = seen.view(batch, kv_heads, group, n, self.head_dim).permute(0, 3, 1, 2, 4)
            x = x + F.linear(seen.reshape(batch, n, -1), layer.out, layer.out_bias)
            h = F.rms_norm(x, x.shape[-1:], layer.before_mlp, self.eps)
            gate_up = F.linear(h, layer.gate_up, layer.gate_up_bias)
            h = F.silu(gate_up[..., : self.mlp]) * gate_up[..., self.mlp :]
            x = x + F.linear(h, layer.down, layer.down_bias)
        return F.linear(F.rms_norm(x[:, 0], x.shape[-1:], self.norm, self.eps), self.head)


def causal_mask(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, 1, n, length]`: 0 up to the token's own position, -inf after it."""
    places = torch.arange(length, device=positions.device)
    mask = torch.zeros(*positions.shape, length, dtype=dtype, device=positions.device)
    return mask.masked_fill_(places > positions[:, :, None], -torch.inf).unsqueeze(1)
