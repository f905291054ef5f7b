"""Sokoban: rooms bit for bit, rules on boards worked by hand, every step as gym-sokoban's."""

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from rlctl.config.serving import Env
from rlctl.envs import family
from rlctl.envs.base import Instance, Skip
from rlctl.envs.grids.rooms import reference_room
from rlctl.envs.grids.sokoban import SokobanWorld, Task, reachable
from rlctl.solvers.boards import Geometry, bits, parse
from rlctl.solvers.chances import random_play

UP, DOWN, LEFT, RIGHT = range(4)
SIX = Geometry(6, 6)
STEPS_OF_GYM_SOKOBAN = "46ec937164c5080cc3a1cb9f3829bb0e83f30757dc82e90c6aaacff8283c1448"
"""sha256 over 10,000 random actions in gym-sokoban 0.0.6 (see `transcript`)."""


def board(*rows: str):
    return parse("\n".join(rows))


def codes(room) -> tuple[np.ndarray, np.ndarray]:
    """gym-sokoban's (room_fixed, room_state) of a room, uint8 [rows, cols]."""
    shape = room.geometry.rows, room.geometry.cols
    fixed = np.zeros(room.geometry.cells, np.uint8)
    fixed[list(bits(room.floor))] = 1
    fixed[list(bits(room.targets))] = 2
    state = fixed.copy()
    for cell in bits(room.boxes):
        state[cell] = 3 if room.targets >> cell & 1 else 4
    state[room.player] = 5
    return fixed.reshape(shape), state.reshape(shape)


@pytest.mark.parametrize(("walk", "digest"), [(False, "fba632c5324130cc"), (True, "03145eaa2979d093")])
def test_rooms_are_those_of_the_reference_for_the_same_seeds(walk, digest):
    found = hashlib.sha256()
    for seed in range(100_000, 101_000):
        for part in codes(reference_room(SIX, 1, 30, seed, walk)):
            found.update(part.tobytes())
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("rows", "cols", "boxes", "depth", "digest"),
    [(8, 8, 2, 10, "6d8a6d5018c8fbbf"), (6, 6, 2, 30, "8b8f55578a0260f7"), (7, 9, 3, 12, "45ad98a6d63f3d65")],
)
def test_rooms_with_several_boxes_are_those_of_the_reference(rows, cols, boxes, depth, digest):
    """Recorded from gym-sokoban's `generate_room` with RAGEN's three changes (depth, last pull kept, pulls only)."""
    found = hashlib.sha256()
    for seed in range(60):
        room = reference_room(Geometry(rows, cols), boxes, depth, seed, walk=False)
        found.update(b"none" if room is None else b"".join(part.tobytes() for part in codes(room)))
    assert found.hexdigest()[:16] == digest


def test_the_first_room_looks_as_published():
    rows = ["######", "#___##", "#PX_##", "#___##", "#___O#", "######"]
    assert reference_room(SIX, 1, 30, 100_000, walk=True).text().split("\n") == rows


@pytest.mark.parametrize("rooms", ["own", "ragen"])
def test_instances_do_not_depend_on_the_hash_seed_of_python(rooms):
    code = (
        "from rlctl.config.serving import Env; from rlctl.envs import family;"
        f"f = family(Env(name='sokoban', rooms={rooms!r}, boxes=2, rows=7, cols=7, search_depth=10));"
        "print([getattr(f.instance(s), 'key', None) for s in range(40)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_box_is_pushed_and_the_player_follows():
    world = SokobanWorld(board("######", "#PX_O#", "######"))
    assert world.step(RIGHT) == (-0.1, False, False)
    assert world.render() == "######\n#_PXO#\n######"


def test_the_last_push_gives_the_target_and_the_end_reward():
    world = SokobanWorld(board("#####", "#PXO#", "#####"))
    assert world.step(RIGHT) == (pytest.approx(10.9), True, True)
    assert world.render() == "#####\n#_P√#\n#####"


def test_blocked_moves_cost_a_step_and_change_nothing():
    world = SokobanWorld(board("######", "#XPXX#", "#_O__#", "######"))
    before = world.render()
    assert [world.step(action) for action in (UP, LEFT, RIGHT)] == [(-0.1, False, False)] * 3
    assert world.render() == before


def test_a_box_leaving_its_target_costs_one_and_a_player_on_a_target_shows():
    world = SokobanWorld(board("######", "#P√_O#", "#_X__#", "######"))
    assert world.step(RIGHT) == (pytest.approx(-1.1), False, False)
    assert world.render() == "######\n#_SXO#\n#_X__#\n######"
    assert world.step(RIGHT) == (pytest.approx(0.9), False, False)


def transcript(play) -> str:
    """Ten random actions in each of 1,000 rooms; `play(room, actions)` gives (picture, reward, solved) per step."""
    found = hashlib.sha256()
    for seed in range(100_000, 101_000):
        draw = random.Random(seed)
        actions = [draw.randrange(4) for _ in range(10)]
        room = reference_room(Geometry(6, 7), 1 + seed % 2, 20, seed, walk=True)
        if room is not None:
            for picture, reward, solved in play(room, actions):
                found.update(f"{picture} {reward:.3f} {bool(solved)}\n".encode())
    return found.hexdigest()


def ours(room, actions):
    world = SokobanWorld(room)
    for action in actions:
        outcome = world.step(action)
        yield world.render(), outcome.reward, outcome.done
        if outcome.done:
            world = SokobanWorld(room)


def test_every_step_agrees_with_the_recorded_steps_of_gym_sokoban():
    assert transcript(ours) == STEPS_OF_GYM_SOKOBAN


@pytest.mark.filterwarnings("ignore")
def test_the_record_is_what_gym_sokoban_really_does():
    gym_sokoban = pytest.importorskip("gym_sokoban.envs.sokoban_env", exc_type=ImportError)

    def theirs(room, actions):
        game = gym_sokoban.SokobanEnv(
            (room.geometry.rows, room.geometry.cols), 100, room.boxes.bit_count(), reset=False
        )

        def restart():
            game.room_fixed, game.room_state = codes(room)
            game.player_position = np.array(divmod(room.player, room.geometry.cols))
            game.num_env_steps, game.boxes_on_target = 0, (room.boxes & room.targets).bit_count()

        restart()
        for action in actions:
            _, reward, done, _ = game.step(action + 1, observation_mode="tiny_rgb_array")
            state = game.room_state.copy()
            state[(game.room_fixed == 2) & (state == 5)] = 6
            yield "\n".join("".join("#_O√XPS"[code] for code in row) for row in state), reward, done
            if done:
                restart()

    assert transcript(theirs) == STEPS_OF_GYM_SOKOBAN


@pytest.mark.parametrize(("actions", "floor", "ceiling"), [(5, 0.122, 0.777), (10, 0.190, 1.0), (25, 0.296, 1.0)])
def test_floor_and_ceiling_of_the_reference_configuration(actions, floor, ceiling):
    """6x6, 1 box, depth 300, seeds 123 to 378: random play solves 19 % of RAGEN's rooms in 10 actions."""
    made = family(Env(name="sokoban", rooms="ragen", search_depth=300))
    rooms = [made.instance(seed) for seed in range(123, 379)]
    assert np.mean([made.floor(room, actions).value for room in rooms]) == pytest.approx(floor, abs=5e-4)
    assert np.mean([made.ceiling(room, actions).value for room in rooms]) == pytest.approx(ceiling, abs=5e-4)


def test_the_floor_of_a_corridor_worked_by_hand():
    """Only `right` wins at once; the other three moves stay: 1 - (3/4)^n."""
    room = board("#####", "#PXO#", "#####")
    made = family(Env(name="sokoban", rows=3, cols=5))
    for actions in (1, 2, 7):
        assert made.floor(Instance("", 0, Task(room, (RIGHT,)), 1), actions) == (pytest.approx(1 - 0.75**actions), True)


def test_too_many_states_are_estimated_and_the_estimate_says_so(monkeypatch):
    made = family(Env(name="sokoban", search_depth=4))
    instance = made.instance(3)
    exact = made.floor(instance, 8)
    monkeypatch.setattr("rlctl.envs.grids.sokoban.MAX_TABLE", 5)
    estimate = made.floor(instance, 8)
    assert (exact.exact, estimate.exact) == (True, False)
    assert estimate == made.floor(instance, 8)
    assert estimate.value == pytest.approx(exact.value, abs=0.05)


def test_the_table_of_a_short_horizon_is_enough_for_it():
    room = family(Env(name="sokoban")).instance(11).payload.room
    short, long = reachable(room, 6, 10**6), reachable(room, 60, 10**6)
    assert len(short.next) < len(long.next)
    assert random_play(short, 6)[0] == pytest.approx(random_play(long, 6)[0])


def test_rooms_longer_than_max_plan_are_skipped_with_the_reason():
    deep = family(Env(name="sokoban", rooms="ragen", max_plan=4))
    found = [deep.instance(seed) for seed in range(100_000, 100_020)]
    assert {skip.reason for skip in found if isinstance(skip, Skip)} == {"too_deep"}
    assert max(one.shortest for one in found if isinstance(one, Instance)) == 4


def test_rooms_shorter_than_min_plan_are_skipped_with_the_reason_and_own_ones_not_made():
    reference = family(Env(name="sokoban", rooms="ragen", min_plan=4))
    found = [reference.instance(seed) for seed in range(100_000, 100_020)]
    assert {skip.reason for skip in found if isinstance(skip, Skip)} == {"too_short"}
    assert min(one.shortest for one in found if isinstance(one, Instance)) == 4
    own = family(Env(name="sokoban", min_plan=4, search_depth=6))
    lengths = [own.instance(seed).shortest for seed in range(60)]
    assert set(lengths) == {4, 5, 6}


@pytest.mark.parametrize(
    ("settings", "longest"),
    [({"search_depth": 5}, 5), ({"max_plan": 4}, 4), ({"rooms": "ragen", "search_depth": 5, "max_plan": 7}, 7)],
)
def test_a_shortest_plan_above_the_longest_one_is_an_error(settings, longest):
    family(Env(name="sokoban", min_plan=longest, **settings))
    with pytest.raises(ValueError, match=f"min_plan = {longest + 1} is above the longest plan, {longest} "):
        Env(name="sokoban", min_plan=longest + 1, **settings)


@pytest.mark.parametrize(("rows", "cols", "boxes"), [(5, 5, 1), (6, 6, 1), (7, 9, 2), (10, 10, 3)])
def test_own_rooms_are_walled_connected_and_end_within_the_depth(rows, cols, boxes):
    made = family(Env(name="sokoban", rows=rows, cols=cols, boxes=boxes, search_depth=12))
    for seed in range(40):
        instance = made.instance(seed)
        room = instance.payload.room
        assert room.floor & ~room.geometry.inner == 0
        assert room.boxes.bit_count() == room.targets.bit_count() == boxes
        assert (room.boxes | room.targets | 1 << room.player) & ~room.floor == 0
        assert not room.boxes >> room.player & 1
        assert 1 <= instance.shortest <= 12
        assert parse(room.text()) == room
