"""Merging sequences into a forest, and cutting them into micro-batches: against what the words say, token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.train.data.tree import Forest, cut, grow, shared


@st.composite
def sequences(draw: st.DrawFn) -> list[np.ndarray]:
    """Sequences over few tokens, many of them continuations of one another."""
    made: list[list[int]] = []
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)
    for _ in range(draw(st.integers(1, 10))):
        stem = draw(st.sampled_from(made)) if made and draw(st.booleans()) else []
        made.append(stem[: draw(st.integers(0, len(stem)))] + draw(tokens))
    return [np.array(one, np.int32) for one in made]


def visible(forest: Forest) -> np.ndarray:
    """bool `[T, T]`: query, key."""
    at = np.arange(len(forest.token_ids))
    ends = np.repeat(forest.nodes[:, 2], forest.nodes[:, 1] - forest.nodes[:, 0])
    return (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])


@given(sequences(), st.integers(1, 5))
def test_every_token_sees_exactly_the_tokens_before_it_in_its_sequence(ids: list[np.ndarray], block: int) -> None:
    forest = grow(ids, block)
    sees = visible(forest)
    for one, place in zip(ids, forest.places, strict=True):
        assert (forest.token_ids[place] == one).all()
        assert (forest.position_ids[place] == np.arange(len(one))).all()
        for j, p in enumerate(place):
            assert np.flatnonzero(sees[p]).tolist() == place[: j + 1].tolist()


@given(sequences(), st.integers(1, 5))
def test_sequences_share_the_whole_blocks_of_their_common_prefix_and_nothing_else(
    ids: list[np.ndarray], block: int
) -> None:
    forest = grow(ids, block)
    for i, one in enumerate(ids):
        for j, other in enumerate(ids[:i]):
            together = set(forest.places[i]) & set(forest.places[j])
            assert len(together) == shared(one, other) // block * block
    assert set(np.concatenate(forest.places)) == set(range(len(forest.token_ids))), "a token belongs to no sequence"


@given(sequences())
def test_with_blocks_of_one_token_a_forest_has_one_token_per_distinct_prefix(ids: list[np.ndarray]) -> None:
    prefixes = {tuple(one[: n + 1]) for one in ids for n in range(len(one))}
    assert len(grow(ids, 1).token_ids) == len(prefixes)


@given(sequences(), st.integers(1, 40), st.integers(1, 4))
def test_a_cut_holds_every_sequence_once_and_its_forests_keep_to_the_budget(
    ids: list[np.ndarray], budget: int, ranks: int
) -> None:
    made = cut(ids, budget, ranks, 2)
    assert sorted(i for a, b in made.runs for i in made.order[a:b]) == list(range(len(ids)))
    sizes = [len(grow([ids[i] for i in made.order[a:b]], 2).token_ids) for a, b in made.runs]
    assert sum(sizes) == made.tokens
    assert max(sizes) <= max(budget, max(map(len, ids)))


def test_the_example_of_the_docstring() -> None:
    p, q, r, a, b, c, d, e = range(8)
    forest = grow([np.array(one) for one in ([p, q, r, a, b], [p, q, r, c, d], [p, q, r, c, d, e])], block=1)
    assert forest.token_ids.tolist() == [p, q, r, a, b, c, d, e]
    assert forest.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 4, 5]
    assert forest.nodes.tolist() == [[0, 3, 8], [3, 5, 5], [5, 7, 8], [7, 8, 8]]
    assert [place.tolist() for place in forest.places] == [[0, 1, 2, 3, 4], [0, 1, 2, 5, 6], [0, 1, 2, 5, 6, 7]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_cut_gives_ranks_nearly_equal_work(ranks: int) -> None:
    rng = np.random.default_rng(0)
    ids = []
    for _ in range(16):
        prompt = rng.integers(0, 300, 64)
        ids += [np.concatenate([prompt, rng.integers(0, 300, rng.integers(10, 60))]) for _ in range(8)]
    made = cut(ids, 1000, ranks)
    sizes = [len(grow([ids[i] for i in made.order[a:b]]).token_ids) for a, b in made.runs]
    assert len(sizes) % ranks == 0
    assert max(sizes) <= 1000 and max(sizes) / min(sizes) < 1.25
