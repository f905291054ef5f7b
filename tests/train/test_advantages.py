import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.train.objective.advantages import ADVANTAGES, group_advantages, has_signal

rewards = st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=2, max_size=16)


def test_grpo_divides_by_the_unbiased_std() -> None:
    # mean 0.5, squared deviations 4 * 0.25 = 1, std = sqrt(1 / 3)
    assert group_advantages("grpo", [1, 0, 0, 1]) == pytest.approx(
        np.array([1, -1, -1, 1]) * 0.5 * np.sqrt(3), abs=1e-5
    )


def test_dr_grpo_only_centres() -> None:
    assert group_advantages("dr_grpo", [3, 1, 2]) == pytest.approx([1, -1, 0])


@pytest.mark.parametrize(("kind", "expected"), [("grpo", -1.875), ("dr_grpo", 0.140625)])
def test_division_by_the_deviation_punishes_a_rare_large_reward_that_few_go_for(kind: str, expected: float) -> None:
    """One of 16 takes 1 with probability 1/4, else 0 (0.25 on average), the others a sure 0.1.

    The one differs by d from the others: advantage 15/16 d, deviation |d| / 4. So grpo sees only its sign, 3.75 (1/4 -
    3/4); without division it is 15/16 (1/4 * 0.9 - 3/4 * 0.1).
    """
    paid, unpaid = (ADVANTAGES[kind](np.array([reward, *[0.1] * 15]))[0] for reward in (1.0, 0.0))
    assert paid / 4 + unpaid * 3 / 4 == pytest.approx(expected, rel=1e-3)


def test_rloo_uses_the_mean_of_the_others() -> None:
    # 3 - (1 + 2) / 2, 1 - (3 + 2) / 2, 2 - (3 + 1) / 2
    assert group_advantages("rloo", [3, 1, 2]) == pytest.approx([1.5, -1.5, 0])


def test_reinforce_is_the_reward_itself() -> None:
    assert group_advantages("reinforce", [3, 1, 2]) == pytest.approx([3, 1, 2])


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_equal_rewards_give_exactly_zero_in_spite_of_rounding(kind: str) -> None:
    assert np.array([0.1] * 3).mean() != 0.1, "this rounding error is what the test is about"
    assert not has_signal(group_advantages(kind, [0.1] * 3))


def test_equal_rewards_are_a_signal_without_a_baseline() -> None:
    assert has_signal(group_advantages("reinforce", [1, 1]))
    assert not has_signal(group_advantages("reinforce", [0, 0]))


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_an_empty_group_and_a_single_trajectory_are_no_error(kind: str) -> None:
    assert len(group_advantages(kind, [])) == 0
    assert group_advantages(kind, [2.0]) == pytest.approx([2.0 if kind == "reinforce" else 0.0])


@given(rewards, st.floats(-5, 5, width=32))
def test_baselines_make_advantages_blind_to_a_constant_and_sum_to_zero(values: list[float], shift: float) -> None:
    for kind in ("dr_grpo", "rloo"):
        plain = group_advantages(kind, values)
        assert plain.sum() == pytest.approx(0, abs=1e-6)
        assert group_advantages(kind, [v + shift for v in values]) == pytest.approx(plain, abs=1e-6)
