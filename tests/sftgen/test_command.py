"""`rlctl sft-gen` as a user meets it."""

import json
import subprocess
import sys


def sft_gen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rlctl", "sft-gen", *arguments], capture_output=True, text=True)


def test_json_is_the_summary_and_nothing_else(tmp_path):
    out = tmp_path / "demonstrations"
    done = sft_gen("sokoban", "--out", str(out), "--train-size", "20", "--test-size", "2", "--json", "-s", "env.rows=7")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["train"], summary["test"], summary["env"]["rows"]) == (20, 2, 7)
    assert len((out / "train.jsonl").read_text().splitlines()) == 20


def test_the_environment_of_a_preset_is_used(tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text('[model]\ninit = "tiny"\n[[env]]\nname = "frozenlake"\nstyle = "compact"\nsize = 5\n')
    done = sft_gen(
        "frozenlake", "--out", str(tmp_path), "--config", str(preset), "--train-size", "3", "--test-size", "0"
    )
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])
    assert row["messages"][0]["content"].startswith(" P ")
    assert len(row["instance"]) == 29


def test_bad_input_is_one_message_and_exit_code_2(tmp_path):
    for arguments, message in (
        (("sokobn",), "'sokobn' is no environment; did you mean 'sokoban'?"),
        (("sokoban", "-s", "env.row=3"), "unknown key env.0.row; did you mean 'rows'?"),
        (("sokoban", "-s", "run.seed=3"), "sft-gen takes keys of the environment only"),
        (("frozenlake", "--workers", "0"), "--workers must be at least 1"),
        (("frozenlake", "--seed", "-1"), "--seed must be at least 0"),
        (("frozenlake", "--seed", "9999999999"), "--seed must be at most"),
    ):
        done = sft_gen(*arguments, "--out", str(tmp_path))
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("error: ") and message in done.stderr
