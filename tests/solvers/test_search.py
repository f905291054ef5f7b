"""The solvers: plans of the reference, board by board, and optimality against a plain search."""

import hashlib
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.grids.caves import cave_room
from rlctl.envs.grids.rooms import reference_room
from rlctl.solvers.boards import Geometry, move, parse
from rlctl.solvers.search import solve

SIX = Geometry(6, 6)
LENGTHS = {
    False: {1: 290, 2: 220, 4: 167, 5: 206, 6: 51, 7: 25, 8: 32, 9: 5, 10: 2, 11: 2},
    True: {1: 86, 2: 226, 3: 120, 4: 162, 5: 154, 6: 111, 7: 65, 8: 47, 9: 18, 10: 5, 11: 3, 12: 2, 14: 1},
}


def plain_search(room, max_moves):
    """First-in first-out over single states, in the order up, down, left, right: what a plan must equal."""
    start = (room.boxes, room.player)
    queue, seen = deque([(start, ())]), {start}
    while queue:
        (boxes, player), plan = queue.popleft()
        if boxes == room.targets:
            return plan
        if len(plan) < max_moves:
            for action, delta in enumerate(room.geometry.deltas):
                state = move(room.floor, boxes, player, delta)
                if state not in seen:
                    seen.add(state)
                    queue.append((state, (*plan, action)))
    return None


@pytest.mark.parametrize(("walk", "digest"), [(False, "773477cb718aa83d"), (True, "b93dfafca8052aa9")])
def test_plans_equal_those_of_the_reference_move_by_move(walk, digest):
    found, lengths = hashlib.sha256(), Counter()
    for seed in range(100_000, 101_000):
        solution = solve(reference_room(SIX, 1, 30, seed, walk), 100)
        found.update(bytes(action + 1 for action in solution.plan))
        lengths[len(solution.plan)] += 1
    assert dict(lengths) == LENGTHS[walk]
    assert found.hexdigest()[:16] == digest


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), boxes=st.integers(1, 3), rows=st.integers(5, 7), cols=st.integers(5, 8))
def test_plans_are_those_of_a_plain_search(seed, boxes, rows, cols):
    made = cave_room(Geometry(rows, cols), boxes, 14, seed)
    if made is None:
        return
    room, plan = made
    assert plan == solve(room, 20).plan == plain_search(room, 20)


def test_a_box_in_a_corner_is_unsolvable():
    assert solve(parse("######\n#X__O#\n#_P__#\n######"), 100).outcome == "unsolvable"


def test_two_boxes_that_block_each_other_are_unsolvable():
    assert solve(parse("#######\n#XX__O#\n#__P_O#\n#######"), 100).outcome == "unsolvable"


def test_a_solved_room_has_the_empty_plan():
    assert solve(parse("#####\n#P√_#\n#####"), 100).plan == ()


def test_a_plan_of_exactly_the_bound_is_found_and_a_longer_one_is_not():
    room = parse("#######\n#PX__O#\n#######")
    assert solve(room, 3).plan == (3, 3, 3)
    assert solve(room, 2).outcome == "too_deep"


def test_a_search_that_grows_too_large_says_so():
    room, _ = cave_room(Geometry(8, 8), 3, 14, 3)
    assert solve(room, 100, max_expanded=1).outcome == "too_large"


@pytest.mark.parametrize("text", ["###\n#P#", "#####\n#P_X\n#####"])
def test_rows_of_different_length_are_refused(text):
    if len({len(row) for row in text.split("\n")}) > 1:
        with pytest.raises(ValueError, match="length"):
            parse(text)
    else:
        assert parse(text).text() == text
