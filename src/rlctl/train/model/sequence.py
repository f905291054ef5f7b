"""Sequence parallelism: columns of a micro-batch over ranks. In attention heads over ranks (Ulysses), or `ring`.

    every layer but attention       [B, S / P, D]        each rank its columns
      | all-to-all                  [B, H / P, S, d]     each rank all columns of some heads
    attention (rows or forests)
      | all-to-all back
    log-probabilities               [n] -> [N]           each rank those it computed -> all of them, on every rank

The loss is computed on every rank from all tokens, so losses over whole sequences are what they are on one rank; each
rank's gradient is that of its own columns, and FSDP adds them up. Source: DeepSpeed-Ulysses, arXiv 2309.14509.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlctl.config import Config
from rlctl.config.learning import Parallel
from rlctl.errors import ConfigError
from rlctl.train.data.batches import MicroBatch
from rlctl.train.data.columns import Columns, columns
from rlctl.train.model import ring, tree_attention
from rlctl.train.model.tree_models import inputs_of, no_mask, why_not
from rlctl.train.ranks import Ranks

NAME = "rlctl_ulysses"
"""As transformers knows it; on one rank it is the attention for forests."""
KEY = "train.parallel.sequence"


@dataclass(frozen=True)
class Exchange:
    """What attention must know of the others: handed through the model's forward pass."""

    group: dist.ProcessGroup
    mask: torch.Tensor | None
    """bool `[B, 1, S, S]` where rows hold several samples; None: causal, or a forest."""


class Spread:
    """How micro-batches lie over the ranks of `group`; None: this rank computes them alone."""

    def __init__(self, group: dist.ProcessGroup | None = None, kind: str = "ulysses") -> None:
        self._group = group
        self._kind = kind

    @property
    def alone(self) -> bool:
        return self._group is None

    def of(self, micro: MicroBatch) -> Columns:
        """This rank's share."""
        if self._group is None:
            return Columns(micro, np.arange(len(micro.targets)), micro.position_ids)
        return columns(micro, self._group.rank(), self._group.size())

    def shape(self, micro: MicroBatch) -> tuple[int, int]:
        """Rows and columns of this rank's share."""
        rows, width = micro.token_ids.shape
        return rows, width if self._group is None else -(-width // self._group.size())

    def inputs(self, share: Columns, model: Any, device: torch.device) -> dict[str, Any]:
        """Arguments of the forward pass of a model with the configuration `model`."""
        if self._group is None:
            return inputs_of(share.micro, model, device)
        if self._kind == "ring":
            ends = torch.from_numpy(ring.ends_of(share.positions, share.micro.nodes)).to(device)
            inputs = inputs_of(share.micro, model, device, ring.NAME)
            return inputs | {"attention_mask": no_mask(device), "ring": ring.Ring(self._group, ends)}
        mask = None
        if share.micro.packed and share.micro.nodes is None:
            mask = block_diagonal(torch.from_numpy(share.positions).to(device))
        inputs = inputs_of(share.micro, model, device, NAME)
        return inputs | {"attention_mask": no_mask(device), "exchange": Exchange(self._group, mask)}

    def together(self, values: torch.Tensor, share: Columns, count: int) -> torch.Tensor:
        """`[n, k]` of this rank's tokens -> `[N, k]` of all; the gradient goes to the rank that computed them."""
        if self._group is None:
            return values
        places = torch.from_numpy(share.places).to(values.device)
        return _Together.apply(values, places, count, self._group)


def spread_of(config: Config, ranks: Ranks) -> Spread:
    """As `train.parallel` asks."""
    return Spread(ranks.sequence_group, config.train.parallel.sequence_kind)


def use_exchange(lm: Any, attention_name: str, parallel: Parallel) -> None:
    """Give the model the attention that exchanges heads, or keys; ConfigError where that would not be exact.

    `attention_name`: what `model.attention` asks for.
    """
    ranks = parallel.tensor * parallel.sequence
    config = lm.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    why = why_not(lm.config)
    if attention_name != "sdpa":
        why = f'model.attention = "{attention_name}"; it needs "sdpa"'
    if not why and parallel.sequence_kind == "ulysses" and (heads % ranks or config.num_attention_heads % ranks):
        why = (
            f"{heads} key-value heads cannot be dealt to train.parallel.tensor x sequence = {ranks} ranks; "
            'train.parallel.sequence_kind = "ring" does not deal them'
        )
    if why:
        raise ConfigError(f"{KEY} cannot be used: {why}")
    name, function = (ring.NAME, ring.attention) if parallel.sequence_kind == "ring" else (NAME, attention)
    tree_attention.register(name, function)
    lm.set_attn_implementation(name)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    exchange: Exchange,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: `[B, H, S / P, d]` three times -> `[B, S / P, H, d]`."""
    group = exchange.group
    query, key, value = (regrouped(x, group) for x in (query, key, value))
    out, _ = tree_attention.attention(module, query, key, value, exchange.mask, **rest)
    return regrouped(out, group), None


def block_diagonal(positions: torch.Tensor) -> torch.Tensor:
    """bool `[B, 1, S, S]`: earlier columns of the same sample; positions int `[B, S]` restart at 0 with each."""
    sample = (positions == 0).cumsum(1)
    same = sample[:, :, None] == sample[:, None, :]
    return same.tril()[:, None]


def regrouped(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """`[B, N, M, d]` -> `[B, N / P, P M, d]`: a share of the N of everybody's M.

    All heads of some columns `[B, H, S / P, d]` become all columns of some heads `[B, H / P, S, d]`; given these with
    columns before heads, `[B, S, H / P, d]`, it leads back, to `[B, S / P, H, d]`.
    """
    ranks = group.size()
    batch, cut, joined, width = x.shape
    sent = x.reshape(batch, ranks, cut // ranks, joined, width).transpose(0, 1)
    got = _Swap.apply(sent, group)
    return got.permute(1, 2, 0, 3, 4).reshape(batch, cut // ranks, ranks * joined, width)


class _Swap(torch.autograd.Function):
    """`[P, ...]`: block r goes to rank r, and from rank r comes block r. Its own inverse, and its own gradient."""

    @staticmethod
    def forward(ctx: Any, sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _swapped(sent, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _swapped(gradients[0], ctx.group), None


def _swapped(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    sent = sent.contiguous()
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return got


class _Together(torch.autograd.Function):
    """Rows of all ranks, each in its place."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, places: torch.Tensor, count: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.save_for_backward(places)
        whole = values.new_zeros(count, values.shape[1])
        whole[places] = values
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0][places], None, None, None
