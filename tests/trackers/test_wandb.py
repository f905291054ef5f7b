"""Weights & Biases without a network: an offline run, read back from its own file."""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from rlctl.trackers.choose import maker
from rlctl.trackers.mirror import Mirror
from tests.e2e.running import wait_for
from tests.trackers.runs import LOSSES, make

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
BLOCK, HEADER = 32768, 7


def stored(path: Path) -> Iterator[bytes]:
    """Records of a .wandb file: LevelDB's log format after a header of its own (7 bytes).

    A record is one piece (type 1) or a first, middle ones and a last (2, 3, 4), each after 4 bytes of checksum, 2 of
    length and 1 of type; no piece crosses a block, whose last bytes are zero when too few for a header.
    """
    content, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """All records of the offline run that `runs.make` becomes."""
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_CACHE_DIR", "c"), ("WANDB_CONFIG_DIR", "d")):
        monkeypatch.setenv(name, value if name == "WANDB_MODE" else str(tmp_path / value))
    mirror = Mirror(make(tmp_path / "run"), "wandb", maker("wandb"), "lakes", {"run": {"name": "lake"}})
    mirror.close()
    assert (mirror.noted.failures, mirror.noted.waiting) == (0, 0), mirror.noted.error
    folder = tmp_path / "run" / "trackers" / "wandb"

    def whole() -> list[Record]:  # W&B's own process closes the file shortly after the run is finished
        for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
            found = [Record.FromString(data) for data in stored(path)]
            if any(record.HasField("exit") for record in found):
                return found
        return []

    return wait_for(whole, 60, "the whole file")


def history(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]


def test_an_offline_run_has_the_curves_the_step_axes_and_the_animations(records: list[Record], tmp_path: Path) -> None:
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name) == ("lakes", "lake/run")
    rows = history(records)
    losses = [(row["train/step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == list(enumerate(LOSSES, 1))
    key = "eval/frozenlake/val/success_rate"
    assert [(row["eval/step"], row[key]) for row in rows if key in row] == [(0, 0.25), (3, 0.75)]
    shown = [row for row in rows if "pictures/step" in row]
    assert [row["pictures/step"] for row in shown] == [0, 3]
    for row, gif in zip(shown, sorted((tmp_path / "run" / "pictures").rglob("*.gif")), strict=True):
        assert row["pictures/val/frozenlake-0/_type"] == "video-file"
        assert row["pictures/val/frozenlake-0/sha256"] == hashlib.sha256(gif.read_bytes()).hexdigest()
        assert row["pictures/val/frozenlake-0/caption"].endswith("no success, reward 0, 1 turn")
    axes = {metric.glob_name: metric.step_metric for record in records if (metric := record.metric).glob_name}
    assert axes["train/*"] == "train/step" and axes["eval/*"] == "eval/step"
