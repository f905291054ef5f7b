"""Countdown: rewards, solvable instances, the exact chance of a random player."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.envs.base import Instance
from rlctl.envs.tasks.countdown import Puzzle, chance
from rlctl.rules.expressions import evaluate

ENV = Env(name="countdown", style="compact", max_turns=1, max_actions=1)
PUZZLE = Instance("3 5 2 = 16", 0, Puzzle((3, 5, 2), 16, "(3+5)*2"), 1)


@pytest.mark.parametrize(
    ("answer", "reward", "success", "unreadable"),
    [
        ("<answer>(3+5)*2</answer>", 1.0, True, 0),
        ("<answer>2 * (5 + 3)</answer>", 1.0, True, 0),
        ("<answer>3+5+2</answer>", 0.1, False, 0),
        ("<answer>16</answer>", 0.0, False, 0),
        ("<answer>3+5*2+3</answer>", 0.0, False, 0),
        ("<answer>4**2</answer>", 0.0, False, 1),
        ("<answer>3/(5-5)+2</answer>", 0.0, False, 1),
        ("<answer>(3+5)*2 = 16</answer>", 0.0, False, 1),
        ("(3+5)*2", 0.0, False, 1),
    ],
)
def test_rewards_are_1_for_the_value_and_a_tenth_for_the_numbers(answer, reward, success, unreadable):
    episode = family(ENV).episode(PUZZLE, 0)
    assert episode.feed(answer)
    facts = episode.facts()
    assert (facts.env_reward, facts.success, facts.format_errors) == (reward, success, unreadable)


@pytest.mark.parametrize("think", [False, True])
def test_every_puzzle_has_a_solution_that_our_own_judge_takes(think):
    env = Env(name="countdown", think=think)
    made, held_out = family(env), {one.key for one in instances(env, "val", 50)}
    for instance in instances(env, "sft", 200):
        episode = made.demonstrate(instance, thoughts=think)
        assert episode.done and episode.facts().env_reward == 1.0
        assert instance.key not in held_out


def test_the_chance_of_a_random_player_by_hand():
    # 2 and 3 to 6: of 8 equally likely results (5 twice, -1, 1, 6 twice, 2/3, 3/2) two are 6
    assert chance((Fraction(2), Fraction(3)), Fraction(6)) == Fraction(1, 4)


def test_the_chance_agrees_with_playing_at_random():
    numbers, target = [Fraction(n) for n in (3, 5, 2)], Fraction(16)
    luck, wins, games = random.Random(0), 0, 20_000
    for _ in range(games):
        left: list = list(numbers)
        while len(left) > 1 and left is not None:
            a, b = luck.sample(left, 2)
            left.remove(a)
            left.remove(b)
            sign = luck.choice("+-*/")
            if sign == "/" and b == 0:
                break
            left.append({"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign])
        wins += left == [target]
    expected = float(chance(tuple(sorted(numbers)), target))
    assert abs(wins / games - expected) < 4 * (expected / games) ** 0.5


@given(st.text(max_size=30))
def test_no_text_breaks_the_evaluator(text):
    try:
        evaluate(text)
    except ValueError:
        return


def test_very_long_and_deep_expressions_are_refused():
    for text in ("(" * 150 + "1" + ")" * 150, "1+" * 150 + "1", "9" * 201):
        with pytest.raises(ValueError):
            evaluate(text)
