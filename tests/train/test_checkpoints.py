"""Checkpoints: written beside the training, whole or not there, exact, acknowledged once durable, the best one kept."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import nn

from rlctl.config.learning import Ckpt
from rlctl.disk import files, folders
from rlctl.errors import RlctlError
from rlctl.pool.state import Rules
from rlctl.pool.store import Store
from rlctl.telemetry.metrics import read
from rlctl.train.loop import Run
from rlctl.train.ranks import Ranks
from rlctl.train.weights import checkpoint, keep, outgoing, states
from rlctl.wire.messages import Ack, CompleteTrajectory, Evaluate, Evaluated, FetchBatch, OpenGroup, SubmitSteps
from rlctl.wire.samples import EvalResult

from .conftest import FakeEngine, random_batch
from .running import World, facts, final_weights, finished, replay, run, torchrun

SCHEDULE = {"optim": {"lr": 1e-3, "schedule": "linear", "warmup_steps": 3}}


def once_per_step(run_dir: Path) -> list[dict[str, Any]]:
    """The row that counts of every step: of one that was done again, the last."""
    return list({row["step"]: row for row in read(run_dir / "metrics" / "train.jsonl")}.values())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- exactness


def test_six_steps_equal_three_and_a_resume_and_three_to_the_last_bit(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    straight = replay(model_dir, tmp_path / "straight", recorded, 6, train=SCHEDULE)
    rows = run(straight)
    halves = replay(model_dir, tmp_path / "halves", recorded, 6, train=SCHEDULE)
    first = Run(halves, Ranks(halves))
    while first.state.step < 3:
        first.step()
    first.checkpoints.close()
    torch.rand(7), torch.manual_seed(123)
    rows_in_halves = run(halves)
    assert facts(rows) == facts(rows_in_halves)
    one, other = final_weights(straight, 6), final_weights(halves, 6)
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------- acknowledged once durable


def test_a_trainer_killed_between_checkpoint_and_ack_acknowledges_again(
    model_dir: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.config(model_dir, tmp_path, run={"steps": 2}, ckpt={"every": 1})
    killed = Run(config, Ranks(config))
    monkeypatch.setattr(killed, "publish", lambda outgoing: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.step()
    killed.checkpoints.close()
    rows = run(config)
    assert [row["step"] for row in rows] == [2], "step 1 was durable and is not done again"
    assert world.events[:4] == ["fetch 1", "version 1", "ack lease-1", "give back all"]


class SlowDisk(World):
    """A checkpoint gets its name when `gate` opens, which happens at the fetch of batch `opens`."""

    def __init__(self, engine: FakeEngine, opens: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(engine)
        self.opens, self.gate = opens, threading.Event()
        finish = folders.finish

        def slow(path: Path) -> None:
            if path.name.startswith("step_"):
                assert self.gate.wait(60)
            finish(path)

        monkeypatch.setattr(folders, "finish", slow)

    def pool_mind(self, request: Any) -> Any:
        reply = super().pool_mind(request)
        if self.fetched >= self.opens:
            self.gate.set()
        return reply


def test_training_goes_on_while_a_checkpoint_is_written_and_holds_its_batches_until_it_is_durable(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SlowDisk(engine, 4, monkeypatch)
    try:
        run(world.config(model_dir, tmp_path, run={"steps": 5}, ckpt={"every": 2}))
    finally:
        world.close()
    told = [event for event in world.events if event.startswith(("fetch", "hold", "ack"))]
    assert told[:6] == [
        "fetch 1", "hold lease-1 of 16", "fetch 2", "hold lease-2 of 16", "fetch 3", "hold lease-3 of 16"
    ]  # fmt: skip
    assert told[6:10] == ["fetch 4", "ack lease-1", "ack lease-2", "hold lease-4 of 16"], "4 waits for 2, then begins"
    assert sorted(told[10:]) == ["ack lease-3", "ack lease-4", "ack lease-5", "fetch 5"]
    assert told[-1] == "ack lease-5"
    acks = [request for request in world.pool.seen if isinstance(request, Ack)]
    assert [len(ack.outcomes) for ack in acks] == [32, 0, 32, 0, 16], "the first names all that the checkpoint contains"


def test_a_disk_that_fails_ends_the_run_with_its_error_and_the_checkpoint_before_stays(
    model_dir: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = outgoing.save_hf

    def full(policy: Any, weights: Any, folder: Path, dtype: str) -> None:
        if "step_4" in str(folder):
            raise OSError(28, "No space left on device")
        save(policy, weights, folder, dtype)

    monkeypatch.setattr(outgoing, "save_hf", full)
    config = world.config(model_dir, tmp_path, run={"steps": 6}, ckpt={"every": 2})
    with pytest.raises(OSError, match="No space left"):
        run(config)
    assert checkpoint.latest(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step_2"
    assert not any(event in world.events for event in ("ack lease-3", "ack lease-4"))


class StoreWorld(World):
    """The same with the pool's own state machine, filled with scored groups."""

    def __init__(self, engine: FakeEngine, groups: int) -> None:
        super().__init__(engine)
        self.store = Store(Rules(max_in_flight=4))
        for group in random_batch(0, groups).groups:
            uids = [t.uid for t in group.trajectories]
            self.store.apply(OpenGroup(group.prompt_uid, uids), 0.0)
            self.store.apply(SubmitSteps([step for t in group.trajectories for step in t.steps]), 0.0)
            for t in group.trajectories:
                self.store.apply(CompleteTrajectory(t.uid, len(t.steps), reward=t.reward), 0.0)

    def pool_mind(self, request: Any) -> Any:
        reply = self.store.apply(request, 0.0)
        if isinstance(request, FetchBatch):
            self.events.append("fetch " + " ".join(group.prompt_uid for group in reply.groups))
        return reply


def test_a_trainer_killed_between_checkpoints_learns_from_the_same_samples_again(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = StoreWorld(engine, groups=4)
    config = world.config(
        model_dir, tmp_path, run={"steps": 4}, ckpt={"every": 3}, train={"groups_per_step": 1}, sync={"every": 9}
    )
    try:
        killed = Run(config, Ranks(config))
        killed.publish(killed.outgoing())
        for _ in range(2):
            killed.step()
        assert world.store.statistics()["groups_held"] == 2
        assert world.store.ledger.slots == 2, "what is held leaves its place in admission to others"
        rows = run(config)
    finally:
        world.close()
    fetched = [event for event in world.events if event.startswith("fetch")]
    assert fetched[:2] == fetched[2:4], "from the older weights, the same batches"
    assert len(set(fetched)) == 4
    assert [row["step"] for row in rows] == [1, 2, 1, 2, 3, 4]
    ended = [one.trajectory.uid for one in world.store.take_ended()]
    assert len(ended) == len(set(ended)) == 16
    values = world.store.statistics()
    assert values["train.trained"] + values["train.zero_variance"] == values["train.created"] == 16


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_a_run_goes_on_with_any_number_of_processes(
    before: int, after: int, model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    algo = {"advantage": "gae", "lam": 0.9, "zero_variance": "keep", "kl": {"coef": 0.1}}
    more: dict[str, Any] = {"algo": algo, "critic": {"optim": {"lr": 1e-3}}, "reference": {"update_every": 2}}
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    straight.mkdir(), halves.mkdir()
    finished(torchrun(replay(model_dir, straight, recorded, 6, **more), straight, before))
    finished(torchrun(replay(model_dir, halves, recorded, 3, **more), halves, before))
    assert len(list((halves / "checkpoints" / "step_3" / "trainer").glob("*.distcp"))) == before
    finished(torchrun(replay(model_dir, halves, recorded, 6, **more), halves, after))
    one, other = once_per_step(straight), once_per_step(halves)
    for key in ("loss", "value_loss", "kl_reference"):
        assert [row[key] for row in one] == pytest.approx([row[key] for row in other], rel=0, abs=1e-6)


SLOW_DISK = """
import sys, time
from rlctl.config import load
from rlctl.train import loop
from rlctl.disk import folders

finish = folders.finish

def slow(path):
    if path.name == "step_4":
        time.sleep(1000)
    finish(path)

folders.finish = slow
loop.main(load([sys.argv[1]], []).config)
"""


@pytest.mark.slow
def test_killed_while_it_writes_it_goes_on_from_the_checkpoint_before_to_the_last_bit(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    settings = {"train": {**SCHEDULE}}
    straight = replay(model_dir, tmp_path / "straight", recorded, 6, **settings)
    run(straight)
    config = replay(model_dir, tmp_path / "killed", recorded, 6, **settings).model_copy(update={"ckpt": Ckpt(every=2)})
    path = tmp_path / "resolved.toml"
    path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
    process = subprocess.Popen([sys.executable, "-c", SLOW_DISK, str(path)])
    deadline = time.monotonic() + 100
    while not any(row["step"] == 5 for row in once_per_step(config.run_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    root = config.run_dir / "checkpoints"
    assert {"step_2", "step_4.tmp"} <= set(names(root))
    assert checkpoint.latest(root) == root / "step_2"
    run(config)
    assert not list(root.glob("*.tmp"))
    assert facts(once_per_step(config.run_dir)) == facts(once_per_step(straight.run_dir))
    one, other = final_weights(straight, 6), final_weights(config, 6)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_saving_before_the_first_update_counts_no_update(tmp_path: Path) -> None:
    found = []
    for saved in (True, False):
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        if saved:
            assert {float(t["step"]) for t in states.moments((layer, optimizer)).values()} == {0.0}
        for _ in range(2):
            layer(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(layer.weight.detach())
    assert torch.equal(*found)


def test_a_checkpoint_of_another_algorithm_is_refused_by_name(model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    run(replay(model_dir, tmp_path, recorded, 3))
    with pytest.raises(RlctlError, match=r"step_3.trainer does not hold the state that this configuration trains"):
        run(replay(model_dir, tmp_path, recorded, 6, algo={"advantage": "gae"}))


def test_a_checkpoint_without_the_shards_of_some_rank_is_refused(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    run(replay(model_dir, tmp_path, recorded, 3))
    (shard,) = (tmp_path / "checkpoints" / "step_3" / "trainer").glob("*.distcp")
    shard.unlink()
    with pytest.raises(RlctlError, match=f"lacks {shard.name}; run.dir must be on a file system"):
        run(replay(model_dir, tmp_path, recorded, 6))
    (tmp_path / "checkpoints" / "step_3" / "trainer" / ".metadata").unlink()
    with pytest.raises(RlctlError, match=r"trainer holds no state of a trainer; begin a new run from the model in hf/"):
        run(replay(model_dir, tmp_path, recorded, 6))


# ---------------------------------------------------------------- kept by count and by value


def row(step: int, rate: float, env: str = "a", name: str = "val") -> dict[str, Any]:
    return {"step": step, "env": env, "name": name, "success_rate": rate, "mean_reward": -rate}


def folders_of(root: Path, *steps: int) -> Path:
    for step in steps:
        (root / f"step_{step}").mkdir(parents=True)
    return root


def test_a_score_is_the_mean_over_the_environments_of_that_evaluation_and_the_last_one_counts() -> None:
    rows = [row(2, 0.9), row(2, 0.2), row(2, 0.4, "b"), row(2, 0.8, name="greedy"), row(3, 0.5)]
    assert keep.scores(rows, "val.success_rate") == pytest.approx({2: 0.3, 3: 0.5})
    assert keep.scores(rows, "val.mean_reward") == pytest.approx({2: -0.3, 3: -0.5})


@pytest.mark.parametrize(
    ("settings", "left", "best"),
    [
        ({"keep": 2}, ["step_11", "step_9"], None),
        ({"keep": 1, "best_metric": "val.success_rate"}, ["step_11", "step_2"], "step_2"),
        ({"keep": 1, "best_metric": "val.success_rate", "keep_best": 2}, ["step_11", "step_2", "step_7"], "step_2"),
        ({"keep": 1, "best_metric": "val.mean_reward"}, ["step_11", "step_4"], "step_4"),
        ({"keep": 9, "best_metric": "greedy.success_rate"}, [f"step_{n}" for n in (11, 2, 4, 7, 9)], None),
    ],
)
def test_the_newest_stay_and_the_best_of_those_that_were_measured(
    settings: dict[str, Any], left: list[str], best: str | None, tmp_path: Path
) -> None:
    root = folders_of(tmp_path / "checkpoints", 2, 4, 7, 9, 11)
    rows = [row(2, 0.7), row(3, 0.9), row(4, 0.1), row(7, 0.5), row(7, 0.7), row(2, 0.8)]
    keep.tidy(root, Ckpt(**settings), rows)
    assert sorted(path.name for path in root.glob("step_*")) == left
    assert (json.loads((root / "best.json").read_text())["checkpoint"] if best else None) == best


def test_of_equal_values_the_later_is_the_better() -> None:
    assert keep.ranked([1, 2, 3, 4], {1: 0.5, 3: 0.5, 4: 0.2}) == [3, 1, 4]


class Rated(World):
    """Evaluations whose success is known by step."""

    rates = {0: 0.1, 2: 0.9, 4: 0.3, 6: 0.5}

    def rollout_mind(self, request: Evaluate) -> Evaluated:
        super().rollout_mind(request)
        return Evaluated([EvalResult(request.step, "fake", request.name, 1.0, 8, self.rates[request.step], 0.1, 0.5)])


def test_a_run_keeps_its_best_checkpoint_and_names_it(model_dir: Path, tmp_path: Path, engine: FakeEngine) -> None:
    world = Rated(engine)
    settings = {"every": 2, "keep": 1, "best_metric": "val.success_rate"}
    try:
        run(world.config(model_dir, tmp_path, run={"steps": 6}, ckpt=settings))
    finally:
        world.close()
    assert names(tmp_path / "checkpoints") == ["best.json", "latest", "step_2", "step_6"]
    found = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert found == {"checkpoint": "step_2", "metric": "val.success_rate", "value": 0.9}


def test_steps_that_are_done_again_are_measured_again(model_dir: Path, tmp_path: Path, engine: FakeEngine) -> None:
    world = Rated(engine)
    config = world.config(model_dir, tmp_path, run={"steps": 4}, ckpt={"every": 2})
    try:
        run(config)
        shutil.rmtree(tmp_path / "checkpoints" / "step_4")
        files.write_text(tmp_path / "checkpoints" / "latest", "step_2")
        world.events.clear()
        run(config)
    finally:
        world.close()
    assert [event for event in world.events if event.startswith("eval")] == ["eval val 4", "eval greedy 4"]
