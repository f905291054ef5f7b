"""FrozenLake: maps bit for bit, every step as gymnasium's, floors and ceilings as published."""

import hashlib
import random

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from rlctl.config.serving import Env
from rlctl.envs import family
from rlctl.envs.base import Instance, Skip
from rlctl.envs.grids.frozenlake import LakeWorld
from rlctl.envs.grids.lakes import maker
from rlctl.solvers.lakes import Lake, distances, neighbours

AFTER = neighbours(4)


def lake(*rows: str) -> Lake:
    flat = "".join(rows)
    holes = sum(1 << i for i, tile in enumerate(flat) if tile == "H")
    return Lake(len(rows), holes, flat.index("S"), flat.index("G"))


@pytest.mark.parametrize(("kind", "digest"), [("ragen_v1", "cb3acc0e2f1db130"), ("ragen", "09df38be3213b818")])
def test_maps_are_those_of_the_reference_for_the_same_seeds(kind, digest):
    make = maker(kind, 4, 0.8)
    maps = ["/".join(make(seed).rows) for seed in range(100_000, 101_000)]
    assert maps[0] == "FFHH/FFFS/GHHF/FFHF"
    assert hashlib.sha256("\n".join(maps).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(("size", "p"), [(4, 0.8), (8, 0.9), (5, 0.6), (3, 1.0)])
def test_maps_are_those_of_gymnasium_for_the_same_seeds(size, p):
    make = maker("gymnasium", size, p)
    assert [make(seed).rows for seed in range(100)] == [generate_random_map(size, p, seed) for seed in range(100)]


def test_a_lake_that_can_have_no_way_gives_no_instance_instead_of_looping_for_ever():
    assert isinstance(family(Env(name="frozenlake", p=0.0, size=4)).instance(0), Skip)


@pytest.mark.parametrize(("slippery", "success_rate"), [(False, 1.0), (True, 1 / 3), (True, 0.8)])
def test_every_step_agrees_with_gymnasium(slippery, success_rate):
    """10,000 random actions over 1,000 maps, with gymnasium's own numbers for the slips."""
    make, draw = maker("gymnasium", 4, 0.8), random.Random(5)
    for seed in range(1000):
        made, luck = make(seed), np.random.Generator(np.random.PCG64(seed))
        theirs = gymnasium.make(
            "FrozenLake-v1", desc=made.rows, is_slippery=slippery, success_rate=success_rate
        ).unwrapped
        done, fresh = True, {"seed": seed}
        for _ in range(10):
            if done:
                theirs.reset(**fresh)
                fresh = {}
                luck.random()  # gymnasium draws the start cell
                ours = LakeWorld(made, AFTER, success_rate, luck if slippery else None)
            action = draw.randrange(4)
            cell, reward, done, _, _ = theirs.step(action)
            assert (ours.step(action), ours.cell) == ((float(reward), done, bool(reward)), cell)
            if not slippery:
                luck.random()  # gymnasium draws on dry ice too


def test_the_picture_shows_player_hole_and_goal():
    world = LakeWorld(lake("SF", "HG"), neighbours(2))
    assert world.render() == "P_\nOG"
    world.step(1)
    assert world.render() == "__\nXG"
    world = LakeWorld(lake("SF", "HG"), neighbours(2))
    world.step(2)
    assert world.render() == "_P\nOG"
    assert world.step(1) == (1.0, True, True)
    assert world.render() == "__\nO√"


def test_distances_go_round_holes():
    assert distances(lake("SHG", "FHF", "FFF"), neighbours(3)) == [6, -1, 0, 5, -1, 1, 4, 3, 2]


def test_each_rollout_of_a_group_slips_its_own_way_and_the_same_way_when_played_again():
    env = Env(name="frozenlake", slippery=True, size=8)
    made = family(env)
    instance = made.instance(7)

    def way(stream):
        world, cells = made.world(instance, stream), []
        for _ in range(12):
            if world.step(1).done:
                break
            cells.append(world.cell)
        return cells

    ways = [way(stream) for stream in range(16)]
    assert ways == [way(stream) for stream in range(16)]
    assert len({tuple(cells) for cells in ways}) > 8


def test_floor_and_ceiling_of_one_move_worked_by_hand():
    """S beside G: one of four moves wins; on ice of 1/3, `right` also happens after `up` and `down`."""
    env = Env(name="frozenlake", size=2)
    instance = Instance("SG/FF", 0, lake("SG", "FF"), 1)
    assert family(env).floor(instance, 1) == (0.25, True)
    assert family(env).ceiling(instance, 1) == (1.0, True)
    slippery = family(Env(name="frozenlake", size=2, slippery=True))
    assert slippery.floor(instance, 1).value == pytest.approx(0.25)
    assert slippery.ceiling(instance, 1).value == pytest.approx(1 / 3)
    assert slippery.ceiling(instance, 0).value == 0


@pytest.mark.parametrize(("actions", "floor", "ceiling"), [(5, 0.157, 0.290), (10, 0.212, 0.483), (100, 0.323, 0.896)])
def test_floor_and_ceiling_of_the_reference_configuration(actions, floor, ceiling):
    """Size 4, p 0.8, slip 1/3, seeds 123 to 378: the floor 21.2 % and the ceiling 48.3 % at 10 actions."""
    made = family(Env(name="frozenlake", maps="ragen", slippery=True))
    maps = [made.instance(seed) for seed in range(123, 379)]
    assert np.mean([made.floor(one, actions).value for one in maps]) == pytest.approx(floor, abs=5e-4)
    assert np.mean([made.ceiling(one, actions).value for one in maps]) == pytest.approx(ceiling, abs=5e-4)


@pytest.mark.parametrize("slippery", [False, True])
def test_the_floor_is_what_random_play_reaches(slippery):
    env = Env(name="frozenlake", slippery=slippery, maps="ragen", success_rate=0.5)
    made, draw, games = family(env), random.Random(3), 4000
    instance = made.instance(2)
    wins = 0
    for stream in range(games):
        world = made.world(instance, stream)
        for _ in range(10):
            outcome = world.step(draw.randrange(4))
            if outcome.done:
                wins += outcome.success
                break
    floor = made.floor(instance, 10).value
    assert 0.05 < floor < 0.95
    assert wins / games == pytest.approx(floor, abs=4 * (floor * (1 - floor) / games) ** 0.5)
