import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.train.data.batches import PASS_TOKENS, cuts, grid, minibatches
from rlctl.train.data.samples import Call, TrainSample


def sample(uid: str, turns: list[tuple[int, int]], siblings_tokens: int = 0, first: int = 0) -> TrainSample:
    """Turns of (prompt, response) lengths; token i of the sample is `first + i`."""
    mask = np.concatenate([np.arange(p + r) >= p for p, r in turns])
    n, places = len(mask), np.flatnonzero(mask)
    return TrainSample(
        uid=uid,
        token_ids=np.arange(first, first + n, dtype=np.int32),
        places=places,
        logprobs=-places.astype(np.float32),
        advantages=np.ones(len(places), np.float32),
        calls=[Call(turn, r, 1.0, [(0, r)]) for turn, (_, r) in enumerate(turns)],
        siblings_tokens=siblings_tokens or len(places),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[TrainSample]:
    lengths = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=20))
    return [sample(f"t{i}", [turn], first=1000 * i) for i, turn in enumerate(lengths)]


@given(batches(), st.integers(1, 4), st.integers(1, 200), st.sampled_from([0, 40, 100]))
def test_a_grid_holds_every_trainable_token_once_and_the_same_passes_on_every_rank(
    samples: list[TrainSample], ranks: int, budget: int, row_tokens: int
) -> None:
    dealt = grid(samples, ranks, budget, "token_mean", row_tokens)
    assert len({len(minibatch.micros) for minibatch in dealt}) == 1
    micros = [micro for minibatch in dealt for micro in minibatch.micros]
    targets = [int(t) for m in micros for t, w in zip(m.targets, m.weights, strict=True) if w > 0]
    assert sorted(targets) == sorted(int(t) for s in samples for t in s.token_ids[s.places])
    assert {minibatch.divisor for minibatch in dealt} == {float(len(targets))}
    for micro in micros:
        assert micro.area <= budget or len(micro.token_ids) == 1, "over the budget with more than one row"
        predecessors = micro.token_ids.reshape(-1)[micro.sources]
        assert (predecessors == micro.targets - 1).all(), "a token is not predicted from the one before it"
        starts = micro.token_ids.reshape(-1)[micro.position_ids.reshape(-1) == 0]
        assert ((starts % 1000 == 0) | (starts == 0)).all(), "positions restart inside a sample"


@given(batches(), st.integers(1, 3))
def test_a_grid_is_deterministic(samples: list[TrainSample], ranks: int) -> None:
    for one, other in zip(grid(samples, ranks, 64, "token_mean"), grid(samples, ranks, 64, "token_mean"), strict=True):
        for a, b in zip(one.micros, other.micros, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()


def test_ranks_get_nearly_equal_work() -> None:
    rng = np.random.default_rng(0)
    samples = [sample(f"t{i}", [(int(rng.integers(20, 400)), 4)]) for i in range(256)]
    areas = [sum(micro.area for micro in minibatch.micros) for minibatch in grid(samples, 4, 2048, "token_mean")]
    assert max(areas) / min(areas) < 1.05


def test_sorted_rows_waste_little_padding() -> None:
    rng = np.random.default_rng(0)
    samples = [sample(f"t{i}", [(int(rng.integers(20, 400)), 4)]) for i in range(256)]
    area = sum(micro.area for micro in grid(samples, 1, 4096, "token_mean")[0].micros)
    assert area / sum(map(len, samples)) < 1.1


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8).map(lambda w: sorted(w, reverse=True)), st.integers(10, 100)
)
def test_cuts_are_the_cheapest_of_all(widths: list[int], budget: int) -> None:
    def cost(runs: list[tuple[int, int]]) -> float:
        areas = [(widths[a] * (b - a), b - a) for a, b in runs]
        return sum(area + PASS_TOKENS if area <= budget or n == 1 else float("inf") for area, n in areas)

    n = len(widths)
    every = [
        list(itertools.pairwise([0, *places, n])) for k in range(n) for places in itertools.combinations(range(1, n), k)
    ]
    assert cost(cuts(widths, budget)) == min(cost(runs) for runs in every)


def test_minibatches_keep_the_forks_of_a_trajectory_together() -> None:
    samples = [sample(f"t{i // 2}", [(2, 1)], first=100 * i) for i in range(20)]
    parts = minibatches(samples, 3, (0, 1, 2))
    assert sorted(len(part) for part in parts) == [6, 6, 8]
    owners = [{one.uid for one in part} for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_minibatches_depend_on_the_seed_alone() -> None:
    samples = [sample(f"t{i}", [(2, 1)]) for i in range(20)]
    uids = [[[s.uid for s in part] for part in minibatches(samples, 4, seed)] for seed in ((0, 0), (0, 0), (0, 1))]
    assert uids[0] == uids[1] != uids[2]


@pytest.mark.parametrize("count", [4, 100])
def test_there_are_never_more_minibatches_than_trajectories(count: int) -> None:
    assert len(minibatches([sample(f"t{i}", [(2, 1)]) for i in range(3)], count, (0,))) == 3
