"""Bandits: what arms pay, what counts as success, pairs that never meet."""

import statistics

import pytest

from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.errors import ConfigError


def env(name="bandit", **more) -> Env:
    return Env(name=name, style="compact", max_turns=1, max_actions=1, **more)


def pulls(made, instance, arm, games=4000):
    facts = []
    for stream in range(games):
        episode = made.episode(instance, stream)
        assert episode.feed(f"<answer>{arm}</answer>")
        facts.append(episode.facts())
    return facts


def test_the_risky_arm_is_success_and_pays_a_quarter_on_average():
    made = family(env())
    (instance,) = [one for one in made.distinct("train", 0) if one.key == "phoenix dragon"]
    safe, risky = pulls(made, instance, "phoenix", 20), pulls(made, instance, "Dragon")
    assert {(one.env_reward, one.success) for one in safe} == {(0.1, False)}
    assert {one.env_reward for one in risky} == {0.0, 1.0} and all(one.success for one in risky)
    assert statistics.mean(one.env_reward for one in risky) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 4000) ** 0.5)
    assert (made.floor(instance, 1).value, made.ceiling(instance, 1).value) == (0.5, 1.0)


def test_the_gaussian_bandit_has_its_means_and_takes_any_arm_for_success():
    made = family(env("two_armed_bandit"))
    instance = next(made.distinct("train", 0))
    safe, risky = (
        instance.payload.shown if instance.payload.risky == instance.payload.shown[1:] else instance.payload.shown[::-1]
    )
    for arm, mean, spread in ((safe, 0.2, 0.1), (risky, 0.75 * 0.1 + 0.25, 0.41)):
        facts = pulls(made, instance, arm)
        assert all(one.success for one in facts)
        assert statistics.mean(one.env_reward for one in facts) == pytest.approx(mean, abs=4 * spread / 4000**0.5)
    assert made.floor(instance, 1).value == 1.0


def test_an_arm_that_is_not_there_cannot_be_pulled():
    made = family(env())
    (facts,) = pulls(made, next(made.distinct("train", 0)), "unicorn", 1)
    assert (facts.env_reward, facts.success, facts.format_errors) == (0.0, False, 1)


def test_both_orders_of_a_pair_are_instances_of_its_split():
    one = env(arms=[("a", "b")], val_arms=[("c", "d")])
    assert {found.key for found in instances(one, "train", 2)} == {"a b", "b a"}
    assert {found.key for found in instances(one, "val", 2)} == {"c d", "d c"}
    with pytest.raises(ConfigError, match="only 2 were found"):
        instances(one, "train", 3)


def test_a_pair_in_two_splits_is_an_error():
    with pytest.raises(ConfigError, match="the arms b and a are in two splits"):
        family(env(arms=[("a", "b")], val_arms=[("b", "a")]))


def test_the_demonstration_pulls_the_risky_arm():
    made = family(env(think=True))
    episode = made.demonstrate(next(made.distinct("sft", 0)), thoughts=True)
    assert episode.success and "astronaut" in episode.messages[-1]["content"]


def test_a_pair_in_both_orders_is_an_error_with_its_cure():
    with pytest.raises(ConfigError, match="c and d are a pair in both orders; put them into `alike`"):
        family(env(arms=[("a", "b")], sft_arms=[("c", "d"), ("d", "c")]))


def test_every_two_names_of_a_list_are_alike_and_both_are_demonstrated():
    made = family(env(arms=[("a", "b")], sft_arms=[("e", "f")], alike=[["c", "d"]]))
    found = {one.key: one for one in made.distinct("sft", 0)}
    assert set(found) == {"c d", "d c", "e f", "f e"}
    for key in ("c d", "d c"):
        said = [made.demonstrate(found[key], number).messages[-1]["content"] for number in range(4)]
        assert said == ["<answer>d</answer>", "<answer>c</answer>"] * 2
        assert all(one.success for arm in "cd" for one in pulls(made, found[key], arm, 5))
        assert made.floor(found[key], 1).value == 1.0
    assert [made.demonstrate(found["e f"], number).messages[-1]["content"] for number in range(2)] == [
        "<answer>f</answer>"
    ] * 2
    assert made.floor(found["e f"], 1).value == 0.5
