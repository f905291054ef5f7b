"""TensorBoard's files, read back with TensorBoard's own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

from rlctl.trackers.choose import maker
from rlctl.trackers.mirror import Mirror
from tests.trackers.runs import LOSSES, make, picture, write


def mirror(run_dir: Path) -> Mirror:
    return Mirror(run_dir, "tensorboard", maker("tensorboard"), "rlctl", {"run": {"name": "lake"}})


def read(run_dir: Path) -> EventAccumulator:
    events = EventAccumulator(str(run_dir / "trackers" / "tensorboard"), {IMAGES: 0})
    return events.Reload()


def test_rows_are_curves_over_training_steps_and_labels_part_of_the_tag(tmp_path: Path) -> None:
    mirror(make(tmp_path)).close()
    events = read(tmp_path)
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == list(enumerate(LOSSES, 1))
    rates = [(one.step, one.value) for one in events.Scalars("eval/frozenlake/val/success_rate")]
    assert rates == [(0, 0.25), (3, 0.75)]
    assert set(events.Tags()["scalars"]) == {
        *("train/loss", "eval/frozenlake/val/success_rate"),
        *("grad_norms/lm_head/grad_norm", "grad_norms/lm_head/not_finite"),
    }


def test_curves_have_the_time_of_the_row_not_that_of_sending(tmp_path: Path) -> None:
    mirror(make(tmp_path)).close()
    assert [one.wall_time for one in read(tmp_path).Scalars("train/loss")] == [2.0, 3.0, 4.0]


def test_pictures_are_the_animations_on_disk_byte_for_byte(tmp_path: Path) -> None:
    mirror(make(tmp_path)).close()
    events = read(tmp_path)
    assert events.Tags()["images"] == ["pictures/val/frozenlake-0"]
    shown = events.Images("pictures/val/frozenlake-0")
    assert [one.step for one in shown] == [0, 3]
    gif = tmp_path / "pictures" / "val" / "step-000003" / "frozenlake-0" / "episode.gif"
    assert shown[1].encoded_image_string == gif.read_bytes()
    assert (shown[1].width, shown[1].height) == (176, 200)  # 4 x 4 tiles of 44 pixels, a line of text of 24


def test_a_run_that_goes_on_adds_to_its_curves(tmp_path: Path) -> None:
    mirror(make(tmp_path)).close()
    write(tmp_path, "train", [{"step": 4, "loss": 0.0625}])
    picture(tmp_path, 4)
    mirror(tmp_path).close()
    events = read(tmp_path)
    assert [one.step for one in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [one.step for one in events.Images("pictures/val/frozenlake-0")] == [0, 3, 4]


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_numbers_that_are_not_finite_are_not_hidden(tmp_path: Path, value: str) -> None:
    make(tmp_path)
    (tmp_path / "metrics" / "train.jsonl").write_text(f'{{"t": 1.0, "step": 1, "loss": {value}}}\n')
    mirror(tmp_path).close()
    (loss,) = read(tmp_path).Scalars("train/loss")
    assert str(loss.value) == {"NaN": "nan", "Infinity": "inf"}[value]
