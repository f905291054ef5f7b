"""Ring attention: every rank keeps the queries of its columns, and all keys and values come past.

    rank 0   q0 | k0 v0 -> k2 v2 -> k1 v1        a part of the keys at a time, merged by log-sum-exp
    rank 1   q1 | k1 v1 -> k0 v0 -> k2 v2        backward they go round once more and bring their gradients home
    rank 2   q2 | k2 v2 -> k1 v1 -> k0 v0

So the ranks need not divide the heads, and none ever holds all keys. Sources: Ring Attention, arXiv 2310.01889; the
merge and the gradient of a part: FlashAttention-2, arXiv 2307.08691, sections 2.3 and 3.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

NAME = "rlctl_ring"
"""As transformers knows it."""


@dataclass(frozen=True)
class Ring:
    """What attention must know of the others: handed through the model's forward pass."""

    group: dist.ProcessGroup
    ends: torch.Tensor
    """int64 `[B, S]` of all columns: key k is visible to query q when `k <= q < ends[k]`."""

    def rounds(self, held: list[torch.Tensor], sums: int = 0) -> Iterator[int]:
        """The rank whose tensors are in `held`, in turn, this one first; what was added to them goes on with them.

        The last `sums` of them go on until this rank has its own again.
        """
        size, rank = self.group.size(), self.group.rank()
        for turn in range(size):
            yield (rank - turn) % size
            going = slice(None) if turn < size - 1 else slice(len(held) - sums, None)
            held[going] = self._passed(held[going])

    def _passed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Given to the next rank; those of the rank before."""
        size, rank = self.group.size(), self.group.rank()
        if not tensors:
            return []
        following, before = (dist.get_global_rank(self.group, (rank + step) % size) for step in (1, -1))
        got = [torch.empty_like(x) for x in tensors]
        sends = [dist.P2POp(dist.isend, x, following, self.group, tag) for tag, x in enumerate(tensors)]
        receives = [dist.P2POp(dist.irecv, x, before, self.group, tag) for tag, x in enumerate(got)]
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()
        return got

    def unseen(self, source: int, columns: int) -> torch.Tensor:
        """bool `[B, 1, 1, s, s]`: which of this rank's queries do not see which keys of rank `source`."""
        at = torch.arange(columns, device=self.ends.device)
        queries, keys = self.group.rank() * columns + at, source * columns + at
        ends = self.ends[:, keys]
        sees = (keys[None, None, :] <= queries[None, :, None]) & (queries[None, :, None] < ends[:, None, :])
        return ~sees[:, None, None]


def ends_of(positions: np.ndarray, nodes: np.ndarray | None) -> np.ndarray:
    """`Ring.ends` of rows, whose `positions [B, S]` restart at 0 with each sample, or of a forest's `nodes`."""
    if nodes is not None:
        return np.repeat(nodes[:, 2], nodes[:, 1] - nodes[:, 0])[None]
    width = positions.shape[1]
    starts = np.where(positions == 0, np.arange(width), width)
    following = np.minimum.accumulate(starts[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([following[:, 1:], np.full((len(positions), 1), width)], axis=1)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    ring: Ring,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: query `[B, H, s, d]`, key and value `[B, H_kv, s, d]` -> `[B, s, H, d]`."""
    batch, heads, columns, width = query.shape
    shared = query.reshape(batch, key.shape[1], heads // key.shape[1], columns, width)
    scale = width**-0.5 if scaling is None else scaling
    out = _Attention.apply(shared, key, value, ring, scale)
    return out.reshape(batch, heads, columns, -1).transpose(1, 2), None


class _Attention(torch.autograd.Function):
    """query `[B, G, H / G, s, d]`, key and value `[B, G, s, d]` -> `[B, G, H / G, s, d]`, computed in float32."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ring: Ring, scale: float
    ) -> torch.Tensor:
        total = torch.full(query.shape[:-1], -torch.inf, device=query.device)
        out = torch.zeros(*query.shape[:-1], value.shape[-1], device=query.device)
        held = [key.contiguous(), value.contiguous()]
        for source in ring.rounds(held):
            if source > ring.group.rank():
                continue  # all of them come later than all queries
            k, v = held
            scores = _scores(query, k, ring, source, scale)
            merged = torch.logaddexp(total, scores.logsumexp(-1))
            out *= (total - merged).exp()[..., None]
            out += (scores - merged[..., None]).exp() @ v[:, :, None].float()
            total = merged
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.ring, ctx.scale = ring, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query, key, value, out, total = ctx.saved_tensors
        ring, scale = ctx.ring, ctx.scale
        gradient = gradients[0].float()
        weighted = (gradient * out).sum(-1, keepdim=True)
        of_query = torch.zeros_like(query, dtype=torch.float32)
        sums = [torch.zeros(x.shape, device=x.device) for x in (key, value)]
        held = [key.contiguous(), value.contiguous(), *sums]
        for source in ring.rounds(held, len(sums)):
            if source > ring.group.rank():
                continue
            k, v, of_key, of_value = held
            shares = (_scores(query, k, ring, source, scale) - total[..., None]).exp()
            of_value += (shares.mT @ gradient).sum(2)
            of_scores = shares * (gradient @ v[:, :, None].float().mT - weighted) * scale
            of_query += of_scores @ k[:, :, None].float()
            of_key += (of_scores.mT @ query.float()).sum(2)
        return of_query.to(query.dtype), held[2].to(key.dtype), held[3].to(value.dtype), None, None


def _scores(query: torch.Tensor, key: torch.Tensor, ring: Ring, source: int, scale: float) -> torch.Tensor:
    """float32 `[B, G, H / G, s, s]`, minus infinity where a query does not see a key."""
    scores = (query.float() @ key[:, :, None].float().mT) * scale
    return scores.masked_fill_(ring.unseen(source, key.shape[2]), -torch.inf)
