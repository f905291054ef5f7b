"""What an evaluation reports of its episodes."""

from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.rollout.score import Played, pass_at_k, result


def row(index: int, sample: int, success: bool, **more) -> Played:
    return Played("e", index, sample, f"i{index}", success, float(success), 2, 1, **more)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_win(tries, data):
    k = data.draw(st.integers(1, len(tries)))
    draws = list(combinations(tries, k))
    assert pass_at_k(len(tries), sum(tries), k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_rates_errors_and_means_by_hand():
    rows = [row(0, 0, True), row(0, 1, False), row(1, 0, False), row(1, 1, False, error="timeout: x")]
    found = result("e", rows, 0.1, None)
    assert (found["instances"], found["samples"], found["failed"]) == (2, 2, 1)
    # instance means 1/2 and 0: mean 1/4, sample variance 1/8, standard error sqrt(1/8/2)
    assert found["success_rate"] == 0.25 and found["success_se"] == pytest.approx(sqrt(1 / 16))
    assert found["pass_at"]["1"]["mean"] == 0.25 and found["pass_at"]["2"]["mean"] == 0.5
    assert (found["floor"], found["ceiling"], found["mean_turns"], found["format_errors"]) == (0.1, None, 2.0, 1.0)


def test_an_episode_played_again_counts_once():
    found = result("e", [row(0, 0, False, error="timeout: x"), row(0, 0, True)], None, None)
    assert (found["success_rate"], found["failed"], found["instances"]) == (1.0, 0, 1)
