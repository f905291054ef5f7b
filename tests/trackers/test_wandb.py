"""Weights & Biases without a network: an offline run, read back from its own file."""

import json
from pathlib import Path
from typing import Any

import pytest
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

from rlctl.trackers.choose import maker
from rlctl.trackers.mirror import Mirror
from tests.trackers.runs import LOSSES, make

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """All records of the offline run that `runs.make` becomes."""
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_CACHE_DIR", "c"), ("WANDB_CONFIG_DIR", "d")):
        monkeypatch.setenv(name, value if name == "WANDB_MODE" else str(tmp_path / value))
    mirror = Mirror(make(tmp_path / "run"), "wandb", maker("wandb"), "lakes", {"run": {"name": "lake"}})
    mirror.close()
    assert (mirror.noted.failures, mirror.noted.waiting) == (0, 0), mirror.noted.error
    (path,) = (tmp_path / "run" / "trackers" / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    found = []
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        found.append(record)
    return found


def history(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]


def test_an_offline_run_has_the_curves_the_step_axes_and_the_animations(records: list[Record]) -> None:
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name) == ("lakes", "lake/run")
    rows = history(records)
    losses = [(row["train/step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == list(enumerate(LOSSES, 1))
    key = "eval/frozenlake/val/success_rate"
    assert [(row["eval/step"], row[key]) for row in rows if key in row] == [(0, 0.25), (3, 0.75)]
    shown = [row for row in rows if "pictures/val/frozenlake-0" in row]
    assert [row["pictures/step"] for row in shown] == [0, 3]
    assert all(row["pictures/val/frozenlake-0"]["_type"] == "video-file" for row in shown)
    axes = {metric.glob_name: metric.step_metric for record in records if (metric := record.metric).glob_name}
    assert axes["train/*"] == "train/step" and axes["eval/*"] == "eval/step"
