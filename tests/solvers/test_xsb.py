"""Sokoban levels in text: XSB, SOK with run-length encoding, Boxoban's files; what cannot be played says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.solvers.xsb import levels, unpacked

MIXED = """\
:: a collection
Set: Little ones
; 0
#####
#@$.#
#####

Second
Author: somebody

  ####
###  #
#  $ #
# .@##
####
Title: Below
Comment:
# # is no board in a comment
######
Comment-End:
Solution
lurdLURD

5#|#@$.#|5#
"""


def pictures(text):
    return [level.room.text() if level.room else level.problem for level in levels(text)]


def test_boards_are_found_between_titles_comments_and_solutions():
    found = list(levels(MIXED))
    assert [(level.line, level.title) for level in found] == [(4, "0"), (11, "Below"), (24, "lurdLURD")]
    assert found[0].room.text() == found[2].room.text() == "#####\n#PXO#\n#####"


def test_rows_are_padded_and_what_lies_outside_is_wall():
    assert list(levels(MIXED))[1].room.text() == "######\n###__#\n#__X_#\n#_OP##\n######"


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ("5#", ["#####"]),
        ("2(-#)3.", ["-#-#..."]),
        ("#2(2-$)|3#", ["#--$--$", "###"]),
        ("(#)", ["#"]),
        ("2(#2(.))", ["#..#.."]),
    ],
)
def test_run_length_encoding(row, rows):
    assert unpacked(row) == rows


def test_all_symbols_of_sok():
    one, other = "######\n#@+$.#", "#######\n#p_-bo#\n#PB*$.#"
    assert "2 players" in pictures(one + "\n######")[0]
    assert "2 players" in pictures(other + "\n#######")[0]
    assert pictures("#######\n#p_-bo#\n#BB*$.#\n#######") == ["#######\n#P__XO#\n#√√√XO#\n#######"]


@pytest.mark.parametrize(
    ("board", "problem"),
    [
        ("#####\n#_$.#\n#####", "no player"),
        ("#####\n#@$$.#\n######", "2 boxes for 1 targets"),
        ("#####\n#@*_#\n#####", "solved from the start"),
        ("#####\n#@__#\n#####", "no box"),
        ("#####\n#@$.\n#####", "not closed"),
        ("#######\n#@$.#$#\n#######", "out of the player's reach"),
        ("#####\n#@$?#\n#####", "'?' is no symbol"),
        ("101#|#@$.#", "longer than 100"),
        ("100(100(100(#)))", "longer than 100"),
        ("####", "1 rows and 4 columns"),
    ],
)
def test_a_level_that_cannot_be_played_says_why(board, problem):
    (found,) = levels(f"title\n\n{board}\n")
    assert found.room is None and problem in found.problem
    assert (found.line, found.title) == (3, "title")


def test_a_walled_in_box_on_its_target_is_decoration():
    assert pictures("########\n#@$.##*#\n########") == ["########\n#PXO####\n########"]


def test_boxoban_levels_follow_one_another():
    text = "; 0\n#####\n#@$.#\n#####\n\n; 1\n#####\n#.$@#\n#####\n"
    assert [(level.title, level.line) for level in levels(text)] == [("0", 2), ("1", 7)]


@given(st.text(alphabet="#@+$*. -_pPbBo0123456789|()\n;ax:", max_size=200))
def test_no_text_at_all_makes_the_reader_stumble(text):
    for level in levels(text):
        assert (level.room is None) == bool(level.problem)
