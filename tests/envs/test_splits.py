"""Splits: disjoint as boards, deterministic, large enough for the demo."""

import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.envs.boards import Boards
from rlctl.envs.splits import split_of
from rlctl.errors import ConfigError

LAKE = Env(name="frozenlake")


@pytest.mark.parametrize("env", [LAKE, Env(name="frozenlake", maps="ragen", size=6), Env(name="sokoban")])
def test_splits_have_no_board_in_common_although_their_seeds_are_the_same(env):
    boards = {split: {one.key for one in instances(env, split, 50, 0)} for split in ("sft", "sft_test", "train", "val")}
    assert all(len(keys) == 50 for keys in boards.values())
    for one, other in combinations(boards.values(), 2):
        assert not one & other


def test_the_demo_has_enough_maps_in_every_split():
    for split, count in (("sft", 600), ("train", 1500), ("val", 400)):
        found = instances(LAKE, split, count, 0)
        assert len({one.key for one in found}) == count
        assert all(one.shortest >= 6 for one in found)


def test_instances_are_the_same_every_time_and_begin_at_the_seed():
    first = instances(LAKE, "val", 20, 500)
    assert first == instances(LAKE, "val", 20, 500)
    assert first[0].seed >= 500
    assert instances(Env(name="frozenlake", seed=500), "val", 20) == first


def test_too_few_boards_are_an_error_that_says_how_many_there_are():
    tiny = Env(name="frozenlake", size=2)
    with pytest.raises(ConfigError, match=r"5 distinct train instances were asked for, but only \d were found"):
        instances(tiny, "train", 5, 0)


def test_a_world_that_cannot_be_made_is_an_error_after_a_short_while():
    with pytest.raises(ConfigError, match="only 0 were found"):
        instances(Env(name="sokoban", rows=3, cols=4), "train", 1, 0)


def test_an_unknown_split_is_an_error():
    with pytest.raises(ConfigError, match="no split 'test'; there are: sft"):
        instances(LAKE, "test", 1, 0)


@given(st.text())
def test_every_board_has_a_split(key):
    for name in ("frozenlake", "sokoban"):
        shares = family(Env(name=name)).shares
        assert sum(shares.values()) == 100
        assert split_of(key, shares) in shares


class Coin(Boards):
    """Somebody's own environment, as far as the lookup looks."""

    actions = ("Heads", "Tails")
    rules, symbols = "Guess.", {"?": "coin"}
    shares = {"train": 100}


def test_anybodys_family_is_found_by_module_and_class():
    assert isinstance(family(Env(name=f"{__name__}:Coin")), sys.modules[__name__].Coin)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Coin", "cannot be imported"),
        (f"{__name__}:Dice", "cannot be imported"),
        ("builtins:repr", "lacks splits"),
    ],
)
def test_a_family_that_cannot_be_used_is_an_error_that_says_why(name, message):
    with pytest.raises(ConfigError, match=message):
        family(Env(name=name))
