"""Own levels: demonstrations of them, the bad ones with their place, RL on the rest of them."""

import json

import pytest

from rlctl.config.serving import Env
from rlctl.envs import Episode, family, instances
from rlctl.envs.grids.caves import cave_room
from rlctl.errors import ConfigError
from rlctl.sftgen.main import Order, generate
from rlctl.solvers.boards import Geometry

XSB = str.maketrans("_O√XPS", " .*$@+")
BAD = """
; no player
#####
# $.#
#####
; open
####
#@$.
####
; stuck in a corner
######
#$  .#
# @  #
######
; far
####################
#@$               .#
####################
"""


def own(count: int) -> str:
    rooms = [cave_room(Geometry(7, 7), 2, 15, seed)[0] for seed in range(count)]
    return "".join(f"; {number}\n{room.text().translate(XSB)}\n\n" for number, room in enumerate(rooms))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "levels"
    (place / "more").mkdir(parents=True)
    (place / "more" / "own.sok").write_text(own(120), encoding="utf-8")
    (place / "bad.txt").write_bytes(BAD.encode() + b"Author: Andr\xe9\n")
    (place / "readme.md").write_text("#####\n#@$.#\n#####\n")
    return place


def of(folder, **more):
    return Env(name="sokoban", levels=str(folder), max_actions=15, max_turns=15, **more)


def test_every_level_is_a_demonstration_or_a_board_of_rl_or_bad_with_its_place(folder, tmp_path):
    env, out = of(folder), tmp_path / "out"
    summary = generate(Order(env, 1000, 1000, 0), out, workers=2)
    assert summary["bad"] == [
        "bad.txt:3: no player, one is needed (no player)",
        "bad.txt:7: the walls around the player are not closed (open)",
        "bad.txt:11: unsolvable",
        "bad.txt:16: too deep",
    ]
    rows = [json.loads(line) for name in ("train", "test") for line in (out / f"{name}.jsonl").open(encoding="utf-8")]
    assert (summary["seeds"], summary["bad_levels"], summary["unsolvable"], summary["too_deep"]) == (122, 4, 1, 1)
    assert summary["written"] + summary["other_splits"] + summary["duplicates"] == 120
    assert len(rows) == summary["written"] > 40
    assert {row["source"].split(":")[0] for row in rows} == {"more/own.sok"}
    made = family(env)
    for row in rows:
        episode = Episode(env, made, made.instance(row["seed"]))
        for message in row["messages"]:
            if message["role"] == "assistant":
                episode.feed(message["content"])
        assert episode.success and episode.messages == row["messages"]
    played = {one.key for split in ("train", "val") for one in made.distinct(split, 0)}
    assert played and not played & {row["instance"] for row in rows}


def test_rl_can_be_trained_on_own_levels(folder):
    found = instances(of(folder), "train", 20)
    assert {one.source.split(":")[0] for one in found} <= {"more/own.sok", "bad.txt"}
    with pytest.raises(ConfigError, match="200 distinct val instances were asked for, but only"):
        instances(of(folder), "val", 200)


def test_levels_that_were_changed_are_another_order(folder, tmp_path):
    generate(Order(of(folder), 10, 0, 0), tmp_path / "out")
    (folder / "more" / "own.sok").write_text(own(119), encoding="utf-8")
    with pytest.raises(ConfigError, match="levels_sha256 was"):
        generate(Order(of(folder), 10, 0, 0), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("nothing", None, "no such file or folder"), ("empty.txt", "", "no level that can be played")],
)
def test_levels_that_are_not_there_are_an_error(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        family(of(tmp_path / name))


def test_a_folder_without_level_files_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no level files \(\.txt, \.xsb, \.sok\)"):
        family(of(tmp_path))


def test_a_plan_of_astar_is_not_called_a_shortest_one(tmp_path):
    (tmp_path / "own.xsb").write_text(own(40), encoding="utf-8")
    generate(Order(of(tmp_path / "own.xsb", solver="astar"), 40, 0, 0), tmp_path / "a")
    generate(Order(of(tmp_path / "own.xsb", solver="bfs"), 40, 0, 0), tmp_path / "b")
    astar, bfs = (
        {row["instance"]: row for row in map(json.loads, (tmp_path / name / "train.jsonl").open(encoding="utf-8"))}
        for name in "ab"
    )
    assert len(bfs) > 10 and set(astar) <= set(bfs)
    assert {row["optimal"] for row in astar.values()} == {False}
    assert {row["optimal"] for row in bfs.values()} == {True}
    assert all(row["plan_length"] >= bfs[key]["plan_length"] for key, row in astar.items())


def test_the_ceiling_of_a_level_with_an_unproven_plan_says_what_it_knows(tmp_path):
    (tmp_path / "own.xsb").write_text(own(3), encoding="utf-8")
    made = family(of(tmp_path / "own.xsb", solver="astar"))
    one = made.instance(0)
    assert made.ceiling(one, one.shortest) == (1.0, True)
    assert made.ceiling(one, one.shortest - 1) == (0.0, False)
