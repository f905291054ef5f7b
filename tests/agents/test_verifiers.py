"""Which row of a verifiers environment a task stands for."""

import pytest

from rlctl.agents.programs.verifiers import pick


@pytest.mark.parametrize("rows", [5, 6, 12, 100])
def test_training_and_held_out_rows_never_meet_and_cover_everything(rows):
    train = {pick("train", seed, rows, 0) for seed in range(1000)}
    val = {pick("val", seed, rows, 0) for seed in range(1000)}
    assert not train & val
    assert {row for _, row in train | val} == set(range(rows))


def test_an_environment_with_evaluation_data_keeps_its_own():
    assert pick("val", 7, 10, 3) == ("val", 1)
    assert pick("train", 17, 10, 3) == ("train", 7)
