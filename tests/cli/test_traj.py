"""`rlctl traj` on the files of a run that is over."""

import json
from pathlib import Path

import pytest

from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.frames import frame, path
from rlctl.wire.inspect import summary, tokens
from rlctl.wire.samples import Ended, Facts, Step, Trajectory
from rlctl.wire.sockets import encode
from tests.cli.running import rlctl

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": None,
    "model": {"type": "WordLevel", "vocab": {"go": 0, "Left": 1, "Right": 2, "[x]": 3}, "unk_token": "[x]"},
}
STEPS = [
    Step("t1", 0, pack_ids([0]), pack_ids([1, 3]), pack_floats([-0.5, -0.25]), [(3, 1), (4, 1)], prompt_uid="p"),
    Step("t1", 1, pack_ids([0, 0]), pack_ids([2]), pack_floats([-1.0]), [(4, 1)], fork_reason="rewritten_history"),
]
ENDED = [
    Ended(1, "trained", Trajectory("t1", "p", "train", STEPS, "complete", reward=0.5, env="lake")),
    Ended(2, "failed", Trajectory("t2", "p", "train", [], "failed", Facts(error="gave up [really]"))),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for folder in ("trajectories", "model"):
        (tmp_path / folder).mkdir()
    path(tmp_path / "trajectories", "ended", 0).write_bytes(b"".join(frame(encode(one)) for one in ENDED))
    (tmp_path / "resolved.toml").write_text(f'[run]\ndir = "{tmp_path}"\n[model]\ninit = "tiny"\n')
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return tmp_path


def test_rows_count_what_was_sampled_by_which_versions_and_why_it_forked() -> None:
    row = summary(ENDED[0])
    assert (row["steps"], row["prompt_tokens"], row["response_tokens"], row["versions"]) == (2, 3, 3, [3, 4])
    assert row["forks"] == {"rewritten_history": 1}
    assert [(r["id"], r["trained"], r["logprob"], r["version"]) for r in tokens(STEPS[0], trained=True)] == [
        (0, False, None, None),
        (1, True, -0.5, 3),
        (3, True, -0.25, 4),
    ]


def test_the_list_is_for_people_and_for_scripts(run_dir: Path) -> None:
    shown = rlctl("traj", run_dir, cwd=run_dir)
    assert shown.returncode == 0 and "rewritten_history" in shown.stdout and "3+3" in shown.stdout
    rows = json.loads(rlctl("traj", run_dir, "--json", "-n", "1", cwd=run_dir).stdout)
    assert [row["uid"] for row in rows] == ["t2"] and rows[0]["error"] == "gave up [really]"


def test_one_trajectory_is_shown_with_its_text_and_token_by_token(run_dir: Path) -> None:
    shown = rlctl("traj", run_dir, "t1", cwd=run_dir).stdout
    assert "fork: rewritten_history" in shown and "Left [x]" in shown and "3:1,4:1" in shown
    lines = rlctl("traj", run_dir, "t1", "--tokens", cwd=run_dir).stdout.splitlines()
    assert any(line.split() == ["1", "trained", "-0.5000", "v3", "'Left'"] for line in lines)
    assert any(line.split() == ["0", "prompt", "'go'"] for line in lines)
    value = json.loads(rlctl("traj", run_dir, "t1", "--tokens", "--json", cwd=run_dir).stdout)
    assert [token["text"] for token in value["tokens"] if token["sampled"]] == ["Left", "[x]", "Right"]


def test_an_unknown_trajectory_is_an_error_that_says_so(run_dir: Path) -> None:
    done = rlctl("traj", run_dir, "t9", cwd=run_dir)
    assert done.returncode == 1 and "no trajectory t9" in done.stderr
    assert rlctl("traj", run_dir / "nowhere", cwd=run_dir).returncode == 2
