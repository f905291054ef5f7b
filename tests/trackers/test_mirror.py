"""What is sent, once, and what becomes of it when a tracker fails."""

import json
import logging
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from rlctl.trackers.mirror import RETRY_S, TRIES, Mirror
from tests.trackers.anybodys import Lines, Moody, got
from tests.trackers.runs import make, picture, write

EVERYTHING = 8
"""3 training rows, 2 evaluations, 1 of gradients, 2 pictures (`runs.make`)."""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Sending:
    run_dir: Path
    clock: Clock
    mirror: Mirror

    def mood(self, text: str) -> None:
        (self.run_dir / "mood").write_text(text)

    @property
    def got(self) -> list[dict]:
        return got(self.run_dir / "trackers" / "moody")

    def after(self, seconds: float) -> list[dict]:
        self.clock.now += seconds
        self.mirror.refresh()
        return self.got


@pytest.fixture
def sending(tmp_path: Path) -> Sending:
    clock = Clock()
    mirror = Mirror(make(tmp_path), "moody", Moody, "p", {"run": {"name": "lake"}}, clock)
    return Sending(tmp_path, clock, mirror)


def test_everything_is_sent_once_rows_by_time_then_pictures(sending: Sending) -> None:
    found = sending.after(0)
    assert [line.get("series", "picture") for line in found] == [
        *("eval", "train", "train", "train", "eval", "grad_norms"),
        *("picture", "picture"),
    ]
    assert sending.after(100) == found
    again = Mirror(sending.run_dir, "moody", Moody, "p", {"run": {"name": "lake"}})
    again.close()
    assert sending.got == found
    noted = again.noted
    assert (noted.rows, noted.pictures, noted.waiting, noted.failures) == (6, 2, 0, 0)


def test_a_tracker_is_told_the_same_run_again_after_a_restart(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "20261121-120000")
    for step in (4, 5):
        mirror = Mirror(run_dir, "lines", Lines, "mine", {"run": {"name": "lake"}})
        mirror.close()
        write(run_dir, "train", [{"step": step, "loss": 1.0}])
    opened = [json.loads(line) for line in (run_dir / "trackers/lines/got.jsonl").read_text().splitlines()]
    opened = [line for line in opened if "opened" in line]
    assert opened == [{"opened": "lake/20261121-120000", "id": mirror.noted.id, "project": "mine"}] * 2
    assert len(mirror.noted.id) == 21


def test_a_line_still_being_written_waits(sending: Sending) -> None:
    sending.after(0)
    path = sending.run_dir / "metrics" / "train.jsonl"
    with path.open("a") as file:
        file.write('{"t": 9e9, "step": 4, "lo')
        file.flush()
        assert len(sending.after(10)) == EVERYTHING
        file.write('ss": 0.5}\n')
    assert sending.after(10)[-1] == {"series": "train", "step": 4, "train/loss": 0.5}


def test_an_episode_played_again_is_sent_again(sending: Sending) -> None:
    sending.after(0)
    picture(sending.run_dir, 3)
    last = sending.after(10)[-1]
    assert (last["tag"], last["step"]) == ("pictures/val/frozenlake-0", 3)
    assert last["caption"] == "val, step 3: no success, reward 0, 1 turn"
    assert sending.mirror.noted.pictures == 3


@pytest.mark.parametrize("mood", ["open", "row", "picture", "flush"])
def test_what_a_tracker_failed_to_take_is_counted_told_and_sent_later(
    sending: Sending, mood: str, caplog: pytest.LogCaptureFixture
) -> None:
    sending.mood(mood)
    with caplog.at_level(logging.WARNING):
        sending.after(0)
    assert sending.mirror.noted.failures >= 1
    assert sending.mirror.noted.error == "ConnectionError: no one is there"
    assert sending.mirror.noted.waiting == (2 if mood == "picture" else EVERYTHING)
    assert "moody failed (1 times so far): ConnectionError: no one is there; the run goes on" in caplog.text
    noted = json.loads((sending.run_dir / "trackers" / "moody.json").read_text())
    assert noted["failures"] >= 1 and noted["error"]
    sending.mood("well")
    assert len(sending.after(RETRY_S - 0.1)) == (6 if mood == "picture" else 0), "it is left alone for a while"
    found = sending.after(0.2)
    assert len(found) == EVERYTHING
    assert [line["step"] for line in found if line.get("series") == "train"] == [1, 2, 3]
    assert (sending.mirror.noted.waiting, sending.mirror.noted.error) == (0, "")


def test_a_tracker_that_stays_away_is_asked_less_and_less(sending: Sending) -> None:
    sending.mood("open")
    asked = []
    for _ in range(1000):
        before = sending.mirror.noted.failures
        sending.after(1.0)
        if sending.mirror.noted.failures > before:
            asked.append(sending.clock.now)
    waits = [late - early for early, late in pairwise(asked)]
    assert waits == [10, 20, 40, 80, 160, 320]


def test_a_picture_refused_again_and_again_is_passed_over_and_counted(
    sending: Sending, caplog: pytest.LogCaptureFixture
) -> None:
    sending.mood("picture 0")
    for _ in range(TRIES):
        sending.after(100)
    assert "step-000000/frozenlake-0/episode.gif is passed over after 3 failures" in caplog.text
    found = sending.after(1000)
    assert [line["step"] for line in found if "tag" in line] == [3]
    noted = sending.mirror.noted
    assert (noted.skipped, noted.pictures, noted.rows, noted.failures, noted.waiting) == (1, 1, 6, TRIES, 0)


def test_no_row_is_ever_passed_over(sending: Sending) -> None:
    sending.mood("row")
    for _ in range(3 * TRIES):
        assert sending.after(1000) == []
    sending.mood("well")
    assert len(sending.after(1000)) == EVERYTHING


def test_what_is_left_at_the_end_is_told_with_its_cure(sending: Sending, caplog: pytest.LogCaptureFixture) -> None:
    sending.mood("open")
    sending.mirror.close()
    assert f"moody: {EVERYTHING} rows and pictures are not sent" in caplog.text
    assert f"`rlctl track {sending.run_dir} --to moody` sends them" in caplog.text


def test_a_clock_that_goes_back_loses_no_row(sending: Sending) -> None:
    rows = [{"t": t, "step": step, "loss": 1.0} for step, t in enumerate((50.0, 40.0, 60.0), 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (sending.run_dir / "metrics" / "train.jsonl").write_text(text)
    assert [line["step"] for line in sending.after(0) if line.get("series") == "train"] == [1, 2, 3]
