"""Weights, names, and functions that misbehave."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.reward.combine import Reward, build, score
from rlctl.reward.functions import FUNCTIONS, Sample
from rlctl.reward.parts import Plain
from rlctl.wire.samples import Facts, Score

SAMPLE = Sample(["first", " 4 "], {"ground_truth": "4"}, Facts(env_reward=2.0, format_errors=3))


@pytest.fixture
def parts() -> Iterator[Callable[..., Reward]]:
    """`parts(name={...section...})` -> the configured reward, closed afterwards."""
    made = []

    def make(cache: Path | None = None, **sections: dict[str, Any]) -> Reward:
        made.append(build(Config.model_validate({"model": {"init": "tiny"}, "reward": sections}), cache))
        return made[-1]

    yield make
    for one in made:
        one.close()


def one(reward: Reward, sample: Sample = SAMPLE) -> Score:
    return reward.score(["t"], [sample])[0]


def test_parts_are_added_with_their_weights_and_keep_their_names(parts) -> None:
    reward = parts(play={"fn": "env", "weight": 0.5}, form={"fn": "format", "weight": -0.1})
    assert one(reward) == Score("t", pytest.approx(0.5 * 2.0 - 0.1 * 3), {"play": 2.0, "form": 3.0})


def test_without_a_reward_section_the_environment_decides(parts) -> None:
    assert one(parts()) == Score("t", 2.0, {"env": 2.0})


def test_the_format_penalty_of_the_environment_is_a_part_of_its_own_whatever_is_configured(parts) -> None:
    sample = Sample([], {}, Facts(env_reward=1.0, extra={"format_penalty": -0.2}))
    assert one(parts(), sample) == Score("t", pytest.approx(0.8), {"env": 1.0, "format_penalty": -0.2})
    only = parts(tries={"fn": "format"})
    assert one(only, sample) == Score("t", pytest.approx(-0.2), {"tries": 0.0, "format_penalty": -0.2})


def test_exact_compares_the_last_response_without_outer_spaces() -> None:
    assert FUNCTIONS["exact"](SAMPLE) == 1
    assert FUNCTIONS["exact"](Sample(["4", "5"], {"ground_truth": "4"})) == 0
    assert FUNCTIONS["exact"](Sample(["x"], {"other": "x"}), key="other") == 1


@pytest.mark.parametrize(("characters", "value"), [(0, 0), (80, 0), (90, 0.5), (100, 1), (500, 1)])
def test_length_rises_over_the_buffer_before_the_limit(characters: int, value: float) -> None:
    assert FUNCTIONS["length"](Sample(["x" * characters]), limit=100, buffer=20) == value


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raises", "raised: RuntimeError: boom"),
        ("leaves", "raised: SystemExit: 1"),
        ("takes_nothing", "raised: TypeError"),
        ("returns_nan", "nan: returned nan"),
        ("returns_infinity", "nan: returned -inf"),
        ("returns_text", "wrong_type: returned str, not a number"),
        ("returns_nothing", "wrong_type: returned NoneType, not a number"),
        ("sleeps_forever", "timeout: ran longer than 0.5 s"),
        ("allocates_50_gb", "memory: used more than 100 MB"),
        ("segfaults", "crash: died of SIGSEGV"),
    ],
)
def test_a_function_that_misbehaves_is_a_score_with_an_error_and_is_counted(parts, name: str, error: str) -> None:
    limits = {"timeout_s": 0.5 if name == "sleeps_forever" else 20.0, "memory_mb": 100}
    reward = parts(env={}, mine={"fn": f"tests.reward.misbehaved:{name}", **limits})
    found = one(reward)
    assert found.error.startswith(f"reward.mine: {error}")
    assert (found.reward, found.parts) == (0.0, {})
    assert reward.counts() == {f"reward.mine: {error.partition(':')[0]}": 1}


def test_a_function_may_score_every_step_and_counts_with_the_sum(parts) -> None:
    reward = parts(length={"fn": "tests.reward.misbehaved:per_step", "weight": 0.5}, env={})
    assert one(reward) == Score("t", 0.5 * (5 + 3) + 2.0, {"length": 8.0, "env": 2.0}, step_rewards=[2.5, 1.5])


@pytest.mark.parametrize(
    ("fn", "sample", "reason"),
    [
        ("numeric", Sample(["4"]), "task has no 'ground_truth'"),
        ("numeric", Sample(["4"], {"ground_truth": "four"}), "'four' has no number"),
        ("exact", Sample([], {"ground_truth": "4"}), "no response text"),
    ],
)
def test_what_is_missing_for_scoring_is_named(fn: str, sample: Sample, reason: str) -> None:
    assert reason in score(["t"], [sample], [Plain("n", FUNCTIONS[fn])])[0].error


def test_a_function_of_ones_own_gets_the_sample_and_its_args(
    parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rewards.py").write_text("def last_word(sample, word):\n    return sample.response.endswith(word)\n")
    monkeypatch.chdir(tmp_path)
    assert one(parts(w={"fn": "my_rewards:last_word", "args": {"word": "4 "}})) == Score("t", 1.0, {"w": 1.0})


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            "exakt",
            "no such function; there are: env, format, exact, numeric, length, regex, math, json_schema, code",
        ),
        ("nowhere:f", "No module named 'nowhere'"),
        ("math:no_such", "has no attribute 'no_such'"),
        ("math:pi", "is float, not a function"),
    ],
)
def test_a_wrong_function_name_is_a_config_error_that_names_the_key(parts, fn: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.x\.fn") as caught:
        parts(x={"fn": fn})
    assert message in str(caught.value)


def test_scores_are_cached_by_content_and_by_the_version_of_the_reward(
    parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = tmp_path / "counted.py", tmp_path / "scores.sqlite"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source.write_text("import time\ndef f(sample, by=1):\n    return by * time.time()\n")
    first = one(parts(cache, t={"fn": "counted:f"}))
    assert one(parts(cache, t={"fn": "counted:f"})) == first, "same content, same version"
    heavier = one(parts(cache, t={"fn": "counted:f", "weight": 2.0}))
    assert heavier.parts == first.parts, "the weight is not part of what is cached"
    assert one(parts(cache, t={"fn": "counted:f"}), Sample(["else"])) != first
    assert one(parts(cache, t={"fn": "counted:f", "args": {"by": 2}})).reward > 1.5 * first.reward
    source.write_text("def f(sample, by=1):\n    return -by\n")
    assert one(parts(cache, t={"fn": "counted:f"})).reward == -1.0


def test_failures_are_not_cached(parts, tmp_path: Path) -> None:
    reward = parts(tmp_path / "s.sqlite", mine={"fn": "tests.reward.misbehaved:raises"})
    assert one(reward).error == one(reward).error != ""
    assert reward.counts() == {"reward.mine: raised": 2}
    assert math.isfinite(one(reward).reward)
