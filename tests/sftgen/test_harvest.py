"""The best trajectories of a run, on a run directory that a real store filled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from rlctl.errors import ConfigError
from rlctl.sftgen.harvest import Wish, harvest
from rlctl.train.data.demonstrations import Recorded, Writing, read, samples_of
from rlctl.train.data.samples import build
from rlctl.wire.arrays import pack_floats
from rlctl.wire.samples import Ended, Facts, Step, Trajectory
from tests.cli.running import rlctl
from tests.data.finished import finished_run, ids


def ended(number: int, group: int, turns: list[tuple[str, str]], reward: float | None, **more: Any) -> Ended:
    uid = f"t{number}"
    steps = [
        Step(
            trajectory_uid=uid,
            step_index=place,
            prompt_ids=ids(prompt),
            response_ids=ids(answer),
            logprobs=pack_floats([-0.5] * len(answer.split())),
            versions=[(number, len(answer.split()))],
            parent=more.get("parents", range(-1, 9))[place],
        )
        for place, (prompt, answer) in enumerate(turns)
    ]
    status, channel, env = more.get("status", "complete"), more.get("channel", "train"), more.get("env", "lake")
    facts = Facts(success=bool(reward))
    return Ended(number, "trained", Trajectory(uid, f"p{group}", channel, steps, status, facts, reward, env=env), 1.0)


ENDED = [
    ended(1, 0, [("go up", "left <eos>")], 1.0),
    ended(2, 0, [("go up", "right <eos>")], 0.5),
    ended(3, 0, [("go up", "left <eos>")], 1.0),  # as t1
    ended(4, 0, [("go up", "up <eos>")], 2.0),
    ended(5, 1, [("go down", "left <eos>"), ("go", "down <eos>")], 1.0, env="sea"),
    ended(6, 1, [("go down", "up")], 0.0),
    ended(7, 2, [("go go", "up")], None),
    ended(8, 2, [("go go", "down")], 1.0, status="failed"),
    ended(9, 3, [("go left", "down")], 3.0, channel="val"),
    ended(10, 4, [("go up", "left <eos>")], 1.0),  # as t1, in another group
    ended(11, 5, [("up", "left"), ("go", "right"), ("down", "down")], 1.0, parents=[-1, 0, 0]),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return finished_run(tmp_path / "run", ENDED)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("wish", "uids"),
    [
        (Wish(), ["t1", "t2", "t4", "t5", "t6", "t11", "t11"]),
        (Wish(min_reward=0.5), ["t1", "t2", "t4", "t5", "t11", "t11"]),
        (Wish(min_reward=1.0, best=1), ["t4", "t5", "t11", "t11"]),
        (Wish(best=2), ["t1", "t4", "t5", "t6", "t11", "t11"]),
        (Wish(env="sea"), ["t5"]),
    ],
)
def test_what_is_kept_by_hand(run_dir, tmp_path, wish, uids):
    found = harvest(run_dir, tmp_path / "out", wish)
    assert [row["uid"] for row in rows(tmp_path / "out" / "train.jsonl")] == uids
    names = ("unscored", "below", "unusable", "duplicates", "not_best", "kept")
    assert sum(found[name] for name in names) == found["trajectories"]
    if not wish.env:
        assert (found["trajectories"], found["unscored"]) == (10, 2)


def test_tokens_are_those_that_were_sampled_each_to_be_learned_once(run_dir, tmp_path):
    harvest(run_dir, tmp_path / "out", Wish())
    by_uid: dict[str, list[dict[str, Any]]] = {}
    for row in rows(tmp_path / "out" / "train.jsonl"):
        by_uid.setdefault(row["uid"], []).append(row)
    for one in ENDED:
        for row, sample in zip(by_uid.get(one.trajectory.uid, []), build("", one.trajectory.steps), strict=False):
            assert row["token_ids"] == sample.token_ids.tolist()
            assert row["loss_mask"] == sample.loss_mask.astype(int).tolist()
    (five,) = by_uid["t5"]
    assert five["text"] == "go down left <eos> go down <eos>"
    assert five["loss_mask"] == [0, 0, 1, 1, 0, 1, 1]
    assert (five["reward"], five["success"], five["prompt_uid"], five["policy_versions"]) == (1.0, True, "p1", [5, 5])
    assert five["run"] == "run" and len(five["config_hash"]) == 64
    branch = by_uid["t11"][1]
    assert (branch["text"], branch["loss_mask"]) == ("up left down down", [0, 0, 0, 1])


def test_the_warm_start_trains_on_these_very_tokens(run_dir, tmp_path):
    harvest(run_dir, tmp_path / "out", Wish(env="sea"))
    (row,) = read(tmp_path / "out" / "train.jsonl")
    assert isinstance(row, Recorded)
    nothing = Writing(lambda *_: "", lambda _: [], "", 0)  # not to be asked for anything
    (sample,) = samples_of("a", row, nothing)
    (sampled,) = build("a", ENDED[4].trajectory.steps)
    assert np.array_equal(sample.token_ids, sampled.token_ids)
    assert np.array_equal(sample.loss_mask, sampled.loss_mask)
    assert sample.siblings_tokens == 4


def test_held_out_prompts_are_not_in_the_training_file(run_dir, tmp_path):
    found = harvest(run_dir, tmp_path / "out", Wish(test_size=1))
    train, test = (rows(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "test"))
    assert (found["train"], found["test"]) == (len(train), len(test)) and test
    assert not {row["text"].split()[1] for row in train} & {row["text"].split()[1] for row in test}
    assert {row["split"] for row in test} == {"test"}


def test_parquet_and_the_same_bytes_again(run_dir, tmp_path):
    for name in "ab":
        harvest(run_dir, tmp_path / name, Wish(form="parquet"))
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()
    assert len(parquet.read_table(tmp_path / "a/train.parquet")) == 7


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"token_ids": [1, 2], "loss_mask": [1]}, "same length"),
        ({"token_ids": [1, 2], "loss_mask": [1, 0]}, "a token to be learned after the first"),
        ({"token_ids": [1, -2], "loss_mask": [0, 1]}, "numbers from 0"),
        ({"token_ids": [1, 2], "loss_mask": [0, 2]}, "0 or 1"),
        ({"token_ids": [1, 2]}, "loss_mask"),
        ({"token_ids": 3, "loss_mask": 1}, "not a row"),
    ],
)
def test_a_bad_token_row_is_named_with_its_line(tmp_path, row, message):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"token_ids": [1, 2], "loss_mask": [0, 1]}) + "\n" + json.dumps(row)
    )
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:2.*{message}"):
        read(tmp_path / "rows.jsonl")


def test_nothing_kept_is_an_error_with_the_counts(run_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"no trajectory is kept .*below 8"):
        harvest(run_dir, tmp_path / "out", Wish(min_reward=9))
    assert not (tmp_path / "out").exists()


def test_the_command(run_dir, tmp_path):
    done = rlctl(
        "sft-gen", "--from-pool", run_dir, "--out", "out", "--min-reward", "1", "--best", "1", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept"] == 3
    for wrong, message in (
        (["--from-pool", run_dir, "--seed", "3", "--thoughts"], "--seed, --thoughts cannot be used with --from-pool"),
        (["--from-pool", run_dir, "--format", "ragen-jsonl"], "--format ragen-jsonl"),
        (["--from-pool", tmp_path], "no run directory"),
        (["sokoban", "--best", "3"], "--min-reward and --best need --from-pool"),
        ([], "which environment?"),
    ):
        done = rlctl("sft-gen", *wrong, "--out", "other", cwd=tmp_path)
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
