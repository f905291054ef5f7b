"""The episode machine: turns, actions, penalties, ends."""

import pytest

from rlctl.config.serving import Env
from rlctl.envs import Episode, family
from rlctl.envs.base import Instance
from rlctl.envs.grids.sokoban import Task
from rlctl.solvers.boards import parse
from rlctl.solvers.lakes import Lake


def lake_episode(**keys) -> Episode:
    """Ice 2x2, start top left, hole below it, goal opposite."""
    env = Env(name="frozenlake", size=2, style="compact", **keys)
    return Episode(env, family(env), Instance("SF/HG", 0, Lake(2, 0b0100, 0, 3), 2))


def test_an_episode_won_in_two_turns():
    episode = lake_episode(format_penalty=-0.1)
    assert not episode.feed("<answer>Right</answer>")
    assert [m["role"] for m in episode.messages] == ["user", "assistant", "user"]
    assert episode.messages[-1]["content"] == " _ P\n O G"
    assert episode.feed("<answer>Down</answer>")
    facts = episode.facts()
    assert (facts.success, facts.env_reward, facts.turn_rewards) == (True, 1.0, [0.0, 1.0])
    assert (facts.actions, facts.format_errors, facts.truncated) == (2, 0, False)
    assert episode.messages[-1]["role"] == "assistant"
    with pytest.raises(ValueError, match="over"):
        episode.feed("<answer>Down</answer>")


def test_falling_into_a_hole_ends_without_success_and_is_no_truncation():
    episode = lake_episode()
    assert episode.feed("<answer>Down</answer>")
    assert (episode.facts().success, episode.facts().truncated) == (False, False)


def test_an_unreadable_answer_costs_a_turn_and_moves_nothing():
    episode = lake_episode(max_turns=2, format_penalty=-0.25)
    before = episode.messages[-1]
    assert not episode.feed("right")
    assert episode.messages[-1] == before
    assert episode.feed("what?")
    facts = episode.facts()
    assert (facts.actions, facts.format_errors, facts.truncated) == (0, 2, True)
    assert facts.turn_rewards == [0.0, 0.0]
    assert facts.extra == {"format_penalty": -0.5, "dropped_actions": 0.0, "turns": 2.0}


def test_actions_after_the_end_are_not_played_and_counted():
    episode = lake_episode(actions_per_turn=4)
    assert episode.feed("<answer>Right || Down || Left || Up</answer>")
    assert (episode.facts().actions, episode.facts().extra["dropped_actions"]) == (2, 2.0)
    assert episode.facts().success


def test_the_action_budget_holds_over_turns_and_limits_the_last_one():
    episode = lake_episode(actions_per_turn=2, max_actions=3)
    assert not episode.feed("<answer>Left || Left</answer>")
    assert episode.limit == 1
    assert episode.feed("<answer>Left || Left</answer>")
    facts = episode.facts()
    assert (facts.actions, facts.extra["dropped_actions"], facts.truncated) == (3, 1.0, True)


def test_the_turn_budget_ends_an_episode():
    episode = lake_episode(max_turns=1)
    assert episode.feed("<answer>Left</answer>")
    assert episode.facts().truncated


def test_stop_is_for_a_context_that_is_full():
    episode = lake_episode()
    episode.stop()
    assert (episode.done, episode.facts().truncated, episode.facts().success) == (True, True, False)


def test_rewards_of_several_actions_add_up_to_the_turns_reward():
    env = Env(name="sokoban", rows=3, cols=6, actions_per_turn=5)
    room = parse("######\n#PX_O#\n######")
    episode = Episode(env, family(env), Instance("", 0, Task(room, (3, 3)), 2))
    assert episode.feed("<answer>Up || Right || Right</answer>")
    assert episode.facts().turn_rewards == [pytest.approx(-0.2 + 10.9)]
    assert episode.facts().env_reward == pytest.approx(11 - 0.1 * 3)
