"""What success is compared to where an environment cannot know it."""

from pathlib import Path

import pytest

from rlctl.config.serving import Env
from rlctl.errors import ConfigError
from rlctl.rollout.evaluate import Limits, limits_of
from rlctl.rollout.instances import world as world_of


def test_unknown_floors_and_ceilings_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "test.jsonl").write_text('{"question": "2 + 3?", "answer": "5"}\n')
    env = Env(name="questions", path=str(tmp_path), val_split="test")
    world = world_of(env)
    assert limits_of(world, world.held_out("val", 3)) == Limits(None, None)


def test_boards_bring_both(tmp_path: Path) -> None:
    env = Env(name="frozenlake", size=2)
    world = world_of(env)
    limits = limits_of(world, world.held_out("train", 1))
    assert limits.floor is not None and limits.ceiling == 1.0 and 0 < limits.floor < 1


def test_a_split_without_instances_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "test.jsonl").write_text("")
    env = Env(name="questions", path=str(tmp_path), val_split="test")
    with pytest.raises(ConfigError, match="only 0 were found"):
        world_of(env).held_out("val", 3)
