"""Environments of other packages, skipped where those are not installed."""

import random
from pathlib import Path

import pytest

from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.errors import ConfigError
from rlctl.sftgen.main import Order, generate


def test_a_reasoning_gym_task_is_scored_by_itself():
    pytest.importorskip("reasoning_gym")
    env = Env(name="reasoning_gym", task="leg_counting", max_turns=1, format_penalty=-0.5)
    made = family(env)
    train, val = ({one.key for one in instances(env, split, 30)} for split in ("train", "val"))
    assert len(train) == len(val) == 30 and not train & val
    instance = next(made.distinct("val", 0))
    truth = made.task(instance)["ground_truth"]
    for answer, success, errors in (
        (f"so <answer>{truth}</answer>", True, 0),
        ("<answer>-1</answer>", False, 0),
        (truth, False, 1),
    ):
        episode = made.episode(instance, 0)
        assert episode.feed(answer)
        facts = episode.facts()
        assert (facts.success, facts.format_errors) == (success, errors)
        assert (facts.env_reward == 1.0) is success


@pytest.mark.parametrize("task", ["no_such_task"])
def test_an_unknown_reasoning_gym_task_is_an_error(task):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ConfigError, match="no_such_task"):
        family(Env(name="reasoning_gym", task=task))


def guess(answers, stream=0):
    env = Env(name="textarena", game="GuessTheNumber-v0", max_turns=20)
    made = family(env)
    instance = next(one for one in made.distinct("train", 0))
    episode = made.episode(instance, stream)
    for answer in answers:
        if episode.feed(answer):
            break
    return instance, episode


def test_a_textarena_game_is_played_to_its_end():
    pytest.importorskip("textarena")
    instance, episode = guess([])
    assert "number between 1 and 20" in episode.messages[0]["content"]
    low, high = 1, 20
    while not episode.done:
        middle = (low + high) // 2
        episode.feed(f"[{middle}]")
        if not episode.done:
            low, high = (middle + 1, high) if "higher" in episode.messages[-1]["content"] else (low, middle - 1)
    assert episode.success and episode.facts().env_reward == 1.0
    assert str((low + high) // 2) in instance.key


def test_textarena_leaves_the_global_generator_alone_and_repeats_itself():
    pytest.importorskip("textarena")
    random.seed(5)
    expected = random.random()
    random.seed(5)
    first, one = guess(["[1]", "[2]"])
    assert random.random() == expected
    second, two = guess(["[1]", "[2]"])
    assert first == second and one.messages == two.messages


def test_hidden_states_of_textarena_do_not_meet():
    pytest.importorskip("textarena")
    made = family(Env(name="textarena", game="GuessTheNumber-v0"))
    train, val = ({one.key for one in made.distinct(split, 0)} for split in ("train", "val"))
    assert len(train) + len(val) == 20 and val and not train & val


def test_a_textarena_game_for_two_is_an_error():
    pytest.importorskip("textarena")
    with pytest.raises(ConfigError, match="cannot be played alone"):
        family(Env(name="textarena", game="TicTacToe-v0"))


def test_a_gymnasium_environment_is_played_by_the_names_of_its_actions():
    pytest.importorskip("gymnasium")
    env = Env(
        name="gymnasium",
        id="FrozenLake-v1",
        parameters={"is_slippery": False},
        actions=["Left", "Down", "Right", "Up"],
        picture="ansi",
        split_by="seed",
    )
    made = family(env)
    instance = next(made.distinct("train", 0))
    episode = made.episode(instance, 0)
    assert "SFFF\nFHFH" in episode.messages[-1]["content"]
    for action in ("Down", "Down", "Right", "Right", "Down", "Right"):
        assert not episode.done
        episode.feed(f"<answer>{action}</answer>")
    assert episode.success and episode.facts().env_reward == 1.0
    floor = made.floor(instance, 10)
    assert 0 <= floor.value < 0.2 and not floor.exact and made.ceiling(instance, 10) is None


def test_taxi_starts_do_not_meet():
    pytest.importorskip("gymnasium")
    env = Env(name="gymnasium", id="Taxi-v4", success_reward=0.0)
    train, val = ({one.key for one in instances(env, split, 20)} for split in ("train", "val"))
    assert not train & val


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"id": "CartPole-v9"}, "CartPole-v9"),
        ({"id": "Pendulum-v1"}, "not actions 0 to n-1"),
        ({"id": "Taxi-v4", "actions": ["a"]}, "has 6 actions, not 1"),
    ],
)
def test_a_gymnasium_environment_that_does_not_fit_is_an_error(more, message):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=message):
        family(Env(name="gymnasium", **more))


def test_what_has_no_optimal_player_has_no_demonstrations(tmp_path):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match="'gymnasium' has no optimal player"):
        generate(Order(Env(name="gymnasium", id="Taxi-v4"), 1, 0, 0), tmp_path)


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_rows_of_a_verifiers_environment_are_instances_and_never_meet(monkeypatch):
    pytest.importorskip("verifiers")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    env = Env(name="verifiers", id="backwards", arguments={"words": 60}, max_turns=1)
    made = family(env)
    train, val = ([one.key for one in made.distinct(split, 3)] for split in ("train", "val"))
    assert len(train) + len(val) == len(set(train + val)) > 50 and val
    instance = next(made.distinct("val", 3))
    assert made.episode(instance, 0).messages == [{"role": "user", "content": instance.key}]
    task = made.task(instance)
    assert made.environment.get_dataset()[int(task["row"])]["answer"] == instance.key[::-1]


def test_verifiers_environments_that_cannot_be_had_or_played_are_errors(monkeypatch):
    with pytest.raises(ValueError, match="plays its episodes itself"):
        Env(name="verifiers", id="backwards", command=["true"])
    pytest.importorskip("verifiers")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with pytest.raises(ConfigError, match="no_such_environment"):
        family(Env(name="verifiers", id="no_such_environment"))
    with pytest.raises(ConfigError, match=r"backwards.*wrods"):
        family(Env(name="verifiers", id="backwards", arguments={"wrods": 1}))
