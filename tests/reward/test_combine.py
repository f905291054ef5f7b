"""Weights, names, and functions that misbehave."""

import math
import sys
from pathlib import Path

import pytest

from rlctl.config.serving import Reward
from rlctl.errors import ConfigError
from rlctl.reward.combine import Part, parts, score
from rlctl.reward.functions import FUNCTIONS, Sample
from rlctl.wire.messages import Facts, Score

SAMPLE = Sample(["first", " 4 "], {"ground_truth": "4"}, Facts(env_reward=2.0, format_errors=3))


def test_parts_are_added_with_their_weights_and_keep_their_names() -> None:
    combined = parts({"play": Reward(fn="env", weight=0.5), "form": Reward(fn="format", weight=-0.1)})
    assert score("t", SAMPLE, combined) == Score("t", pytest.approx(0.5 * 2.0 - 0.1 * 3), {"play": 2.0, "form": 3.0})


def test_without_a_reward_section_the_environment_decides() -> None:
    assert score("t", SAMPLE, parts({})) == Score("t", 2.0, {"env": 2.0})


def test_the_format_penalty_of_the_environment_is_a_part_of_its_own_whatever_is_configured() -> None:
    sample = Sample([], {}, Facts(env_reward=1.0, extra={"format_penalty": -0.2}))
    assert score("t", sample, parts({})) == Score("t", pytest.approx(0.8), {"env": 1.0, "format_penalty": -0.2})
    only = parts({"tries": Reward(fn="format")})
    assert score("t", sample, only) == Score("t", pytest.approx(-0.2), {"tries": 0.0, "format_penalty": -0.2})


def test_exact_compares_the_last_response_without_outer_spaces() -> None:
    assert FUNCTIONS["exact"](SAMPLE) == 1
    assert FUNCTIONS["exact"](Sample(["4", "5"], {"ground_truth": "4"})) == 0
    assert FUNCTIONS["exact"](Sample(["x"], {"other": "x"}), key="other") == 1


def crash(sample: Sample) -> float:
    raise RuntimeError("boom")


def leave(sample: Sample) -> float:
    sys.exit(1)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (crash, "reward.mine: RuntimeError: boom"),
        (leave, "reward.mine: SystemExit: 1"),
        (lambda sample: math.nan, "reward.mine: returned nan"),
        (lambda sample: -math.inf, "reward.mine: returned -inf"),
        (lambda sample: "1.0", "reward.mine: returned str, not a number"),
        (lambda sample: None, "reward.mine: returned NoneType, not a number"),
        (lambda: 1.0, "reward.mine: TypeError"),
    ],
)
def test_a_function_that_misbehaves_is_a_score_with_an_error(function: object, error: str) -> None:
    found = score("t", SAMPLE, [Part("env", FUNCTIONS["env"]), Part("mine", function)])
    assert found.error.startswith(error)
    assert (found.reward, found.parts) == (0.0, {})


@pytest.mark.parametrize(
    ("fn", "sample", "reason"),
    [
        ("numeric", Sample(["4"]), "task has no 'ground_truth'"),
        ("numeric", Sample(["4"], {"ground_truth": "four"}), "'four' has no number"),
        ("exact", Sample([], {"ground_truth": "4"}), "no response text"),
    ],
)
def test_what_is_missing_for_scoring_is_named(fn: str, sample: Sample, reason: str) -> None:
    assert reason in score("t", sample, [Part("n", FUNCTIONS[fn])]).error


def test_a_function_of_ones_own_gets_the_sample_and_its_args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def last_word(sample, word):\n    return sample.response.endswith(word)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    combined = parts({"w": Reward(fn="my_rewards:last_word", args={"word": "4 "})})
    assert score("t", SAMPLE, combined) == Score("t", 1.0, {"w": 1.0})


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        ("exakt", "no such function; there are: env, format, exact, numeric, module:function"),
        ("nowhere:f", "No module named 'nowhere'"),
        ("math:no_such", "has no attribute 'no_such'"),
        ("math:pi", "is float, not a function"),
    ],
)
def test_a_wrong_function_name_is_a_config_error_that_names_the_key(fn: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.x\.fn") as caught:
        parts({"x": Reward(fn=fn)})
    assert message in str(caught.value)
