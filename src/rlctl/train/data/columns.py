"""The columns of a micro-batch, dealt to the ranks that compute it together (sequence parallelism). Pure.

row  a b c d e f g .      rank 0: a b c d      rank 1: e f g .       (. is padding, to a multiple of the ranks)
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from rlctl.train.data.batches import MicroBatch

OF_ROWS = ("token_ids", "position_ids")


@dataclass(frozen=True)
class Columns:
    """What one rank computes of a micro-batch."""

    micro: MicroBatch
    """Its columns, and the trainable tokens that they predict; `nodes` are those of the whole row, padding included."""
    places: np.ndarray
    """int64 `[n]`: which of the micro-batch's N trainable tokens those are."""
    positions: np.ndarray
    """int64 `[B, S]`: positions of all columns, padding included."""


def columns(micro: MicroBatch, rank: int, ranks: int) -> Columns:
    """The share of `rank` among `ranks`: neighbouring columns of every row, equally many on each."""
    width = micro.token_ids.shape[1]
    padding = -width % ranks
    ids, positions = (np.pad(array, ((0, 0), (0, padding))) for array in (micro.token_ids, micro.position_ids))
    share = (width + padding) // ranks
    mine = slice(rank * share, (rank + 1) * share)
    row, column = np.divmod(micro.sources, width)
    places = np.flatnonzero(column // share == rank)
    tokens = {
        field.name: getattr(micro, field.name)[places]
        for field in fields(micro)
        if isinstance(getattr(micro, field.name), np.ndarray) and field.name not in (*OF_ROWS, "nodes")
    }
    tokens["sources"] = row[places] * share + column[places] - rank * share
    nodes = micro.nodes
    if nodes is not None and padding:
        end = width + padding
        nodes = np.concatenate([nodes, np.array([[width, end, end]], np.int64)])
    part = replace(
        micro,
        token_ids=np.ascontiguousarray(ids[:, mine]),
        position_ids=np.ascontiguousarray(positions[:, mine]),
        columns={name: values[places] for name, values in micro.columns.items()},
        nodes=nodes,
        **tokens,
    )
    return Columns(part, places, positions)
