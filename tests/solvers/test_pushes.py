"""A*: plans replay to success, nothing solvable is given up, and every deadlock that is called one is one."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.grids.caves import cave, cave_room
from rlctl.solvers.boards import Geometry, Room, bits, move, parse
from rlctl.solvers.deadlocks import FAR, Field
from rlctl.solvers.pushes import Pushes, pairing, solve_by_pushes
from rlctl.solvers.search import solve


def replayed(room, plan):
    boxes, player = room.boxes, room.player
    for action in plan:
        boxes, player = move(room.floor, boxes, player, room.geometry.deltas[action])
    return boxes


def any_room(seed, boxes, rows, cols):
    """A random room, solvable or not; None where the cave is too small."""
    luck = random.Random(seed)
    geometry = Geometry(rows, cols)
    floor = cave(geometry, luck)
    cells = list(bits(floor))
    if len(cells) < boxes + 2:
        return None
    targets = sum(1 << cell for cell in luck.sample(cells, boxes))
    *standing, player = luck.sample(cells, boxes + 1)
    return Room(geometry, floor, targets, sum(1 << cell for cell in standing), player)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), boxes=st.integers(1, 4), rows=st.integers(4, 7), cols=st.integers(4, 7))
def test_astar_solves_exactly_what_the_full_search_solves(seed, boxes, rows, cols):
    room = any_room(seed, boxes, rows, cols)
    if room is None:
        return
    full, found = solve(room, 10**6), solve_by_pushes(room, 10**6)
    assert found.outcome == full.outcome
    if found.outcome == "solved":
        assert replayed(room, found.plan) == room.targets
        assert len(found.plan) >= len(full.plan)
        if len(full.plan):
            assert solve_by_pushes(room, len(found.plan) - 1).outcome == "too_deep"


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**9), boxes=st.integers(2, 4), size=st.integers(5, 7))
def test_a_box_called_lost_makes_the_room_unsolvable(seed, boxes, size):
    room = any_room(seed, boxes, size, size)
    if room is None:
        return
    field = Field(room.geometry, room.floor, room.targets)
    if any(field.lost(cell, room.boxes) for cell in bits(room.boxes)) or room.boxes & ~field.live:
        assert solve(room, 10**6).outcome == "unsolvable"


@given(st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=1, max_size=4))
def test_pairing_is_the_cheapest_of_all(costs):
    ways = itertools.permutations(range(4), len(costs))
    assert pairing(costs) == min(sum(row[column] for row, column in zip(costs, way, strict=True)) for way in ways)


def test_boxes_that_need_the_same_target_have_no_pairing():
    assert pairing([[1, FAR], [2, FAR]]) >= FAR
    room = parse("#######\n#PX_O_#\n##X_###\n#___O_#\n#######")
    assert Pushes(room).bound(room.boxes) == 2 + 3


def test_the_bound_of_a_corridor_is_the_pushes_it_takes():
    room = parse("########\n#PX___O#\n########")
    assert Pushes(room).bound(room.boxes) == 4
    assert solve_by_pushes(room, 100).plan == (3, 3, 3, 3)


def test_cells_along_a_wall_without_target_are_dead():
    room = parse("######\n#_X__#\n#P_O_#\n#____#\n######")
    field = Field(room.geometry, room.floor, room.targets)
    assert list(bits(field.live)) == [14, 15]
    assert solve_by_pushes(room, 100).outcome == "unsolvable"


def test_two_boxes_side_by_side_at_a_wall_are_frozen_and_lost():
    room = parse("#######\n#_XX_O#\n#_____#\n#__P__#\n#O____#\n#######")
    field = Field(room.geometry, room.floor, room.targets)
    assert field.frozen(9, room.boxes) and field.lost(9, room.boxes)
    assert not field.frozen(9, 1 << 9)


def test_a_square_of_boxes_on_targets_is_frozen_and_not_lost():
    room = parse("######\n#____#\n#_√√_#\n#_√√_#\n#P___#\n######")
    field = Field(room.geometry, room.floor, room.targets)
    assert field.frozen(14, room.boxes) and not field.lost(14, room.boxes)


def test_a_corral_that_must_be_opened_first_leaves_only_its_own_pushes():
    room = parse("########\n#P_X___#\n####X###\n###_O###\n###_####\n#___X_O#\n###O####\n########")
    assert solve_by_pushes(room, 200).outcome == solve(room, 200).outcome


def test_a_search_beyond_its_bound_says_so():
    room, _ = cave_room(Geometry(8, 8), 3, 14, 3)
    assert solve_by_pushes(room, 100, ladder=((2, 1),)).outcome == "too_large"


def test_a_large_room_with_ten_boxes_is_solved_in_a_moment():
    rows = ["##############", *["#____________#"] * 10, "##############"]
    board = [list(row) for row in rows]
    for number in range(10):
        board[4 + number % 2][2 + number] = "X"
        board[9][2 + number] = "O"
    board[1][1] = "P"
    room = parse("\n".join("".join(row) for row in board))
    found = solve_by_pushes(room, 1000)
    assert replayed(room, found.plan) == room.targets
    assert solve(room, 1000, max_expanded=20_000).outcome == "too_large"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_room_gives_the_same_plan(seed):
    room, _ = cave_room(Geometry(9, 9), 3, 20, seed)
    assert solve_by_pushes(room, 500) == solve_by_pushes(room, 500)
