"""`rlctl reward score FILE`."""

import json
from pathlib import Path

import pytest

from tests.cli.running import rlctl

PRESET = """
[model]
init = "tiny"
[reward.right]
fn = "numeric"
[reward.long]
fn = "length"
weight = -0.5
args = {limit = 20}
"""


def test_a_file_is_scored_in_order(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PRESET)
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    rows = [
        {"response": "it is 4", "task": {"ground_truth": "4"}},
        {"responses": ["no", "it is five, that is to say 5"], "task": {"ground_truth": "4"}},
        {"messages": chat, "task": {"ground_truth": "4"}},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rlctl("reward", "score", "in.jsonl", "-c", "p.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0, -0.5, 1.0]
    assert "3 samples scored, 0 of them with an error" in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ('{"response": "4"}', 1, "1 of them with an error"),
        ("{}", 2, "in.jsonl:1: needs exactly one of"),
        ("{", 2, "in.jsonl:1:"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, code: int, words: str) -> None:
    (tmp_path / "p.toml").write_text(PRESET)
    (tmp_path / "in.jsonl").write_text(line + "\n")
    done = rlctl("reward", "score", "in.jsonl", "-c", "p.toml", cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
