"""Numbers that an evaluation reports."""

import math

import pytest

from rlctl.rollout.evaluate import rate_with_error


def test_the_error_of_distinct_instances_is_the_binomial_one() -> None:
    rate, error = rate_with_error(["a", "b", "c", "d"], [1.0, 0.0, 1.0, 0.0])
    assert rate == 0.5
    # sample variance of (1, 0, 1, 0) is 1/3; its mean of 4: sqrt(1/3/4)
    assert error == pytest.approx(math.sqrt(1 / 12))


def test_repeating_an_instance_does_not_shrink_the_error() -> None:
    once = rate_with_error(["a", "b"], [1.0, 0.0])
    thrice = rate_with_error(["a", "b"] * 3, [1.0, 0.0] * 3)
    assert thrice == pytest.approx(once)


def test_one_instance_has_no_error_to_report() -> None:
    assert rate_with_error(["a", "a"], [1.0, 0.0]) == (0.5, 0.0)
