"""The main loop: alone on recorded batches, and under a real torchrun against real sockets."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from rlctl.errors import ConfigError, RlctlError, Watchdog
from rlctl.telemetry.metrics import read
from rlctl.train.data.source import append_batch, read_batches
from rlctl.wire.messages import (
    Ack,
    Batch,
    FetchBatch,
)
from rlctl.wire.samples import Group

from .conftest import config_for, random_batch
from .running import World, final_weights, finished, record, replay, run, torchrun


def test_a_batch_without_signal_is_a_logged_step_that_changes_no_weight(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flat = random_batch(0, groups=1)
    members = [
        t.__class__(**{**{f: getattr(t, f) for f in t.__struct_fields__}, "reward": 1.0})
        for t in flat.groups[0].trajectories
    ]
    with (tmp_path / "flat").open("ab") as file:
        append_batch(file, Batch(lease="x", groups=[Group("g", "fake", members)]))
    config = replay(model_dir, tmp_path / "run", tmp_path / "flat", 1)
    (row,) = run(config)
    assert (row["step"], row["updates"], row["outcome_zero_variance"]) == (1, 0, len(members))
    assert "no sample carries a signal" in caplog.text
    before, after = load_file(model_dir / "model.safetensors"), final_weights(config, 1)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_replay_that_runs_out_says_so(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RlctlError, match="no more batches"):
        run(replay(model_dir, tmp_path / "run", record(tmp_path / "one", 1), 2))


@pytest.mark.parametrize(
    ("section", "words"),
    [({"rollout": {"top_p": 0.9}}, "top_p = 0.9"), ({"run": {"steps": 1}}, "engine.urls is empty")],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    model_dir: Path, tmp_path: Path, section: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(config_for(model_dir, tmp_path, **section))


def test_a_whole_run_under_torchrun_does_everything_in_the_order_that_is_safe(
    model_dir: Path, tmp_path: Path, world: World
) -> None:
    world.empty_polls = 2
    config = world.config(model_dir, tmp_path, run={"steps": 3})
    finished(torchrun(config, tmp_path))
    assert world.events == [
        "version 0", "give back all", "eval val 0", "eval greedy 0",
        "fetch 1", "version 1", "ack lease-1",
        "fetch 2", "version 2", "ack lease-2", "eval val 2",
        "fetch 3", "version 3", "ack lease-3", "eval val 3", "eval greedy 3",
        "end of the run",
    ]  # fmt: skip
    result = json.loads((tmp_path / "train_result.json").read_text())
    assert result == {"steps": 3, "policy_version": 3, "checkpoint": "checkpoints/step_3"}
    assert json.loads((tmp_path / "components" / "train.json").read_text())["state"] == "finished"
    assert [row["step"] for row in read(tmp_path / "metrics" / "train.jsonl")] == [1, 2, 3]
    assert [row["name"] for row in read(tmp_path / "metrics" / "eval.jsonl")] == [
        "val",
        "greedy",
        "val",
        "val",
        "greedy",
    ]
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["v2", "v3"]
    acks = [request for request in world.pool.seen if isinstance(request, Ack)]
    assert [len(ack.outcomes) for ack in acks] == [16, 16, 16], "one outcome for every trajectory of the lease"
    served, saved = load_file(tmp_path / "weights" / "v3" / "model.safetensors"), final_weights(config, 3)
    assert all(torch.equal(served[name], saved[name]) for name in saved)


def test_sync_every_publishes_less_often_and_counts_publications(model_dir: Path, tmp_path: Path, world: World) -> None:
    rows = run(world.config(model_dir, tmp_path, run={"steps": 3}, sync={"every": 2}))
    assert [row["policy_version"] for row in rows] == [0, 1, 2]
    assert [event for event in world.events if "version" in event] == ["version 0", "version 1", "version 2"]


def test_batches_can_be_recorded_and_trained_on_again(model_dir: Path, tmp_path: Path, world: World) -> None:
    live = run(world.config(model_dir, tmp_path / "live", run={"steps": 2}, train={"record": True}))
    again = run(config_for(model_dir, tmp_path / "again", run={"steps": 2}, train={
        "replay": str(tmp_path / "live" / "batches.msgpack")}))  # fmt: skip
    assert [row["loss"] for row in live] == [row["loss"] for row in again]


def test_a_run_on_forests_computes_fewer_tokens_and_learns_the_same(model_dir: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "batches"
    with recorded.open("ab") as file:
        append_batch(file, random_batch(0, share=35))
    found = {}
    for tree in ("auto", False):
        train = {"replay": str(recorded), "minibatches": 1, "prefix_tree": tree}
        (found[tree],) = run(config_for(model_dir, tmp_path / str(tree), run={"steps": 1}, train=train))
    forest, rows = found["auto"], found[False]
    assert forest["computed_tokens"] < 0.8 * rows["computed_tokens"]
    for key in ("loss", "grad_norm", "entropy", "kl_behaviour"):
        assert forest[key] == pytest.approx(rows[key], rel=1e-5)


@pytest.mark.parametrize(("cut", "words"), [(-1, "record 2 is broken"), (-10_000_000, None)])
def test_a_recording_that_is_cut_off_is_an_error(tmp_path: Path, cut: int, words: str | None) -> None:
    whole = record(tmp_path / "whole", 2).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:cut])
    if words is None:
        assert list(read_batches(tmp_path / "cut")) == []
        return
    with pytest.raises(RlctlError, match=words):
        list(read_batches(tmp_path / "cut"))


def test_no_batch_for_too_long_ends_with_the_watchdogs_error(model_dir: Path, tmp_path: Path, world: World) -> None:
    world.empty_polls = 10**9
    with pytest.raises(Watchdog, match="no batch of 4 groups"):
        run(world.config(model_dir, tmp_path, run={"steps": 1}, monitor={"watchdog_s": 0.2}))


@pytest.mark.slow
def test_a_trainer_that_hangs_shows_its_stacks_and_ends_with_exit_code_4(
    model_dir: Path, tmp_path: Path, world: World
) -> None:
    path = tmp_path / "resolved.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = {"urls": [f"http://127.0.0.1:{silent.getsockname()[1]}"]}
        config = world.config(model_dir, tmp_path, monitor={"watchdog_s": 8})
        config = config.model_copy(update={"engine": config.engine.model_copy(update=engine)})
        path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
        command = [sys.executable, "-m", "rlctl", "train", "--config", str(path)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 4
    assert "no training step for 8 s" in done.stderr
    assert "most recent call first" in done.stderr and "rlctl/train/loop.py" in done.stderr


def test_sigterm_ends_a_waiting_trainer_with_exit_code_0(model_dir: Path, tmp_path: Path, world: World) -> None:
    world.empty_polls = 10**9
    path = tmp_path / "resolved.toml"
    config = world.config(model_dir, tmp_path)
    path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
    process = subprocess.Popen(
        [sys.executable, "-m", "rlctl", "train", "--config", str(path)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not any(isinstance(request, FetchBatch) for request in world.pool.seen) and time.monotonic() < deadline:
        time.sleep(0.1)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert time.monotonic() - asked < 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full", "none"])
def test_one_and_two_processes_have_the_same_losses(
    model_dir: Path, tmp_path: Path, recorded: Path, strategy: str
) -> None:
    rows = {}
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        config = replay(model_dir, folder, recorded, 5, train={"fsdp": {"strategy": strategy}})
        finished(torchrun(config, folder, processes))
        rows[processes] = list(read(folder / "metrics" / "train.jsonl"))
    for one, two in zip(rows[1], rows[2], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert two["entropy"] == pytest.approx(one["entropy"], rel=1e-5)
        assert two["tokens"] == one["tokens"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_adapters_on_two_processes_are_those_of_one_and_resume_there(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    train = {"lora": {"rank": 4, "target_modules": ["q_proj", "v_proj"]}}
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    for folder, steps, processes in ((one, 5, 1), (two, 3, 2), (two, 5, 1)):
        config = replay(model_dir, folder, recorded, steps, train=train, monitor={"layer_grad_norms": True})
        finished(torchrun(config, folder, processes))
    for name, columns in (("train", ("loss", "grad_norm")), ("grad_norms", ("grad_norm",))):
        mine, theirs = (list(read(folder / "metrics" / f"{name}.jsonl")) for folder in (one, two))
        assert len(mine) == (5 if name == "train" else 5 * 2)
        for column in columns:
            assert [row[column] for row in theirs] == pytest.approx([row[column] for row in mine], rel=1e-4)
    saved = FileSystemReader(two / "checkpoints" / "step_3" / "trainer").read_metadata().state_dict_metadata
    assert saved and all(".lora_" in name for name in saved)
    before = load_file(model_dir / "model.safetensors")
    ours, others = (final_weights(replay(model_dir, folder, recorded, 5), 5) for folder in (one, two))
    changed = {name for name in before if not torch.equal(before[name], ours[name])}
    assert changed and all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)
    assert all(torch.allclose(ours[name], others[name], atol=1e-5) for name in before)
