"""Columns of a micro-batch over ranks: every token on one rank, predicted where its source lies."""

import numpy as np
import pytest

from rlctl.train.data.batches import grid
from rlctl.train.data.columns import columns

from .test_policy import with_columns


@pytest.mark.parametrize("cut", [{}, {"row_tokens": 128}, {"tree": True}])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_shares_of_all_ranks_are_the_micro_batch(cut: dict[str, int], ranks: int) -> None:
    for micro in grid(with_columns(), 1, 300, "token_mean", **cut)[0].micros:
        shares = [columns(micro, rank, ranks) for rank in range(ranks)]
        width = micro.token_ids.shape[1]
        for name in ("token_ids", "position_ids"):
            whole = np.concatenate([getattr(share.micro, name) for share in shares], 1)
            assert (whole[:, :width] == getattr(micro, name)).all()
            assert not whole[:, width:].any() and whole.shape[1] < width + ranks
        assert sorted(np.concatenate([share.places for share in shares]).tolist()) == list(range(len(micro.targets)))
        for rank, share in enumerate(shares):
            part = share.micro
            row, column = np.divmod(part.sources, part.token_ids.shape[1])
            wide = row * width + column + rank * part.token_ids.shape[1]
            assert (wide == micro.sources[share.places]).all()
            for name in ("targets", "behaviour", "advantages", "temperatures", "weights", "sequences", "index"):
                assert (getattr(part, name) == getattr(micro, name)[share.places]).all()
            assert (part.columns["reference"] == micro.columns["reference"][share.places]).all()


def test_padding_of_a_forest_is_a_tree_of_its_own() -> None:
    (micro,) = grid(with_columns()[:1], 1, 300, "token_mean", tree=True)[0].micros
    width = micro.token_ids.shape[1]
    share = columns(micro, 0, width - 1)
    assert share.micro.nodes is not None and micro.nodes is not None
    assert share.micro.nodes.tolist() == [*micro.nodes.tolist(), [width, 2 * width - 2, 2 * width - 2]]
