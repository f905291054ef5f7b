"""Stats, export and import over the real command line, on a run directory that a real store filled."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl.data.formats import shaped
from rlctl.data.rows import Source, context, trajectory
from rlctl.errors import RlctlError
from rlctl.pool.ended import EndedLog
from rlctl.train.data.source import read_batches
from rlctl.wire.arrays import pack_floats
from rlctl.wire.frames import read_ended
from rlctl.wire.messages import Feedback, Noted
from rlctl.wire.samples import (
    Ended,
    Facts,
    Step,
    Trajectory,
)
from tests.cli.running import rlctl
from tests.data.finished import finished_run, ids


def step(uid: str, index: int, prompt: str, response: str, version: int) -> Step:
    count = len(response.split())
    return Step(
        trajectory_uid=uid,
        step_index=index,
        prompt_ids=ids(prompt),
        response_ids=ids(response),
        logprobs=pack_floats([-0.25] * count),
        versions=[(version, count)],
        parent=index - 1,
    )


def ended(number: int, group: int, responses: list[str], reward: float | None, **more: Any) -> Ended:
    uid = f"p{group}.{number}"
    version = more.get("version", 0)
    steps = [step(uid, i, "go up", text, version) for i, text in enumerate(responses)]
    task = {"question": "where?", "ground_truth": "left"}
    facts = Facts(env_reward=reward or 0.0, success=bool(reward), turn_rewards=[0.0] * len(steps))
    parts = {} if reward is None else {"env": reward}
    one = Trajectory(
        uid, f"p{group}", more.get("channel", "train"), steps, "complete", facts, reward, parts, env="lake", task=task
    )
    return Ended(number, more.get("outcome", "trained"), one, 100.0 + number)


ENDED = [
    ended(1, 0, ["left <eos>"], 1.0),
    ended(2, 0, ["right <eos>"], 0.0),
    ended(3, 1, ["left left <eos>", "down <eos>"], 1.0, version=2),
    ended(4, 1, ["up <eos>"], 0.0, version=3),
    ended(5, 2, ["up <eos>"], None, outcome="failed"),
    ended(6, 3, ["left <eos>"], 1.0, channel="val", outcome="complete"),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return finished_run(tmp_path / "run", ENDED)


def data(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = rlctl("data", *arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stats_of_a_run_by_hand(run_dir: Path, tmp_path: Path) -> None:
    found = data("stats", run_dir, cwd=tmp_path)
    assert (found["trajectories"], found["outcomes"]) == (5, {"failed": 1, "trained": 4})
    assert (found["reward"]["count"], found["reward"]["mean"], found["success_rate"]) == (4, 0.5, 0.4)
    assert found["response_tokens"]["sum"] == 2 + 2 + (3 + 2) + 2 + 2
    assert found["policy_versions"] == {"0": 3, "2": 1, "3": 1}
    assert found["reward_parts"]["env"]["max"] == 1.0


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        (["--min-reward", "0.5"], [1, 3]),
        (["--max-reward", "0.5"], [2, 4]),
        (["--outcome", "failed"], [5]),
        (["--channel", "val"], [6]),
        (["--channel", ""], [1, 2, 3, 4, 5, 6]),
        (["--min-version", "2", "--max-version", "2"], [3]),
        (["--min-tokens", "3"], [3]),
        (["--text", "^left"], [1, 3]),
        (["--env", "sea"], []),
    ],
)
def test_every_condition_chooses_what_it_says(
    run_dir: Path, tmp_path: Path, conditions: list[str], numbers: list[int]
) -> None:
    data("export", run_dir, "out.jsonl", *conditions, cwd=tmp_path)
    assert [row["number"] for row in lines(tmp_path / "out.jsonl")] == numbers


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_native_export_is_the_same_bytes_again_and_comes_back_token_by_token(
    run_dir: Path, tmp_path: Path, suffix: str
) -> None:
    first = data("export", run_dir, f"a{suffix}", cwd=tmp_path)
    second = data("export", run_dir, f"b{suffix}", cwd=tmp_path)
    assert first["sha256"] == second["sha256"]
    assert (first["rows"], first["format"], len(first["config_hash"])) == (5, "native", 64)
    assert json.loads((tmp_path / f"a{suffix}.manifest.json").read_text()) == first
    told = data("import", f"a{suffix}", "batches.msgpack", "--groups-per-step", "2", cwd=tmp_path)
    assert (told["kind"], told["steps"], told["rows_without_reward"]) == ("batches", 1, 1)
    (batch,) = read_batches(tmp_path / "batches.msgpack")
    originals = [one.trajectory for _, one in read_ended(run_dir / "trajectories")]
    assert [t for group in batch.groups for t in group.trajectories] == originals[:4]


def test_feedback_is_in_the_native_rows(run_dir: Path, tmp_path: Path) -> None:
    log = EndedLog(run_dir / "trajectories", 1 << 20)
    log.write_notes([Noted(1, Feedback("p0.1", -1.0, text="wrong door"))])
    log.close()
    data("export", run_dir, "out.jsonl", "--max-tokens", "2", cwd=tmp_path)
    found = {row["uid"]: json.loads(row["feedback"]) for row in lines(tmp_path / "out.jsonl")}
    assert (found["p0.1"][0]["value"], found["p0.1"][0]["text"], found["p0.2"]) == (-1.0, "wrong door", [])


def test_datasets_loads_the_parquet_file(run_dir: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data("export", run_dir, "a.parquet", cwd=tmp_path)
    loaded = datasets.Dataset.from_parquet(str(tmp_path / "a.parquet"), cache_dir=str(tmp_path / "cache"))
    assert loaded["reward"] == [1.0, 0.0, 1.0, 0.0, None]
    assert loaded[0]["steps"][0]["response"] == "left <eos>"


def test_a_later_step_sees_the_chain_of_its_parents() -> None:
    steps = ENDED[2].trajectory.steps
    assert context(steps, steps[1]) == steps[0].prompt_ids + steps[0].response_ids + steps[1].prompt_ids


def test_images_stay_with_their_steps_and_text_formats_refuse_them() -> None:
    one = ended(1, 0, ["left <eos>"], 1.0)
    steps = [msgspec.structs.replace(one.trajectory.steps[0], images=["ab.png"])]
    one = msgspec.structs.replace(one, trajectory=msgspec.structs.replace(one.trajectory, steps=steps))
    where = Source("run", "hash")
    row = json.loads(json.dumps(next(shaped([one], "native", where, lambda ids: "", {}))))
    assert trajectory(row).steps == steps
    with pytest.raises(RlctlError, match=r"p0\.1 has images, and trl-sft rows are text"):
        list(shaped([one], "trl-sft", where, lambda ids: "", {}))


def test_formats_of_other_trainers(run_dir: Path, tmp_path: Path) -> None:
    data("export", run_dir, "sft.jsonl", "--format", "trl-sft", "--min-reward", "1", cwd=tmp_path)
    assert [(row["prompt"], row["completion"]) for row in lines(tmp_path / "sft.jsonl")] == [
        ("go up", "left <eos>"),
        ("go up", "left left <eos>"),
        ("go up left left <eos> go up", "down <eos>"),
    ]
    data("export", run_dir, "dpo.jsonl", "--format", "trl-dpo", cwd=tmp_path)
    (pair,) = lines(tmp_path / "dpo.jsonl")
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ("go up", "left <eos>", "right <eos>")
    assert json.loads(pair["provenance"])["chosen"]["uid"] == "p0.1"
    data("export", run_dir, "verl.parquet", "--format", "verl", cwd=tmp_path)
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(tmp_path / "verl.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": "where?"}]] * 3
    assert rows[0]["reward_model"] == {"style": "rule", "ground_truth": "left"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"prompt": "a", "completion": "b"},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ],
)
def test_chat_logs_become_demonstrations(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    assert data("import", "in.jsonl", "out.jsonl", cwd=tmp_path)["kind"] == "demonstrations"
    wanted = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert lines(tmp_path / "out.jsonl") == [{"messages": wanted}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "run", "out.csv"], "must end in .jsonl or .parquet"),
        (["export", "run", "out.jsonl", "--format", "trl"], "there are: native, trl-sft, trl-dpo, verl"),
        (["stats", "nowhere"], "nowhere is not there"),
        (["stats", "run", "--text", "("], "no regular expression"),
        (["import", "missing.jsonl", "out"], "missing.jsonl: no such file"),
        (["import", "bad.jsonl", "out"], "bad.jsonl:1:"),
        (["import", "odd.jsonl", "out"], "odd.jsonl:1: has neither steps, nor messages"),
        (["import", "half.jsonl", "out"], "half.jsonl:2: has neither steps, nor messages"),
    ],
)
def test_what_cannot_be_is_named(run_dir: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "odd.jsonl").write_text('{"a": 1}\n')
    talk = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "half.jsonl").write_text(json.dumps(talk) + '\n{"a": 1}\n')
    done = rlctl("data", *arguments, cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.glob("out*")), "nothing, rather than half of it"
