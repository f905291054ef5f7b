"""Commands that report: text for people, one JSON value on stdout with --json."""

import json
import resource
from pathlib import Path

import pytest

from rlctl.config import load, presets
from tests.cli.running import python, rlctl

CHECK = """
import sys, time
from typer.testing import CliRunner
from rlctl.cli import app
result = CliRunner().invoke(app, ["--help"])
assert result.exit_code == 0 and "up" in result.stdout, result
heavy = {"torch", "pydantic", "numpy", "zmq", "transformers", "rich.live"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    done = python("-c", CHECK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_help_takes_less_than_300_ms_of_cpu(tmp_path: Path) -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert rlctl("--help", cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.3


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_validates_and_plans_here(tmp_path: Path, name: str) -> None:
    assert rlctl("config", "validate", name, cwd=tmp_path).returncode == 0
    done = rlctl("up", name, "--plan", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    names = [process["name"] for process in plan["processes"]]
    assert names[-1] == "train"
    assert {"pool", "engine-0", "gateway", "reward", "rollout"} <= set(names)
    assert all({"argv", "env", "gpus", "needs", "stage"} <= set(process) for process in plan["processes"])
    assert len({*plan["ports"]["engines"], *(plan["ports"][key] for key in ("pool", "gateway", "rollout"))}) == 4
    assert list(tmp_path.iterdir()) == []  # a plan writes nothing


def test_a_plan_for_people_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    done = rlctl("up", "frozenlake-cpu", "--dry-run", "--only", "pool,gateway", cwd=tmp_path)
    assert "-m rlctl pool --config" in done.stdout
    assert "RLCTL__POOL__PORT=" in done.stdout
    assert "-m rlctl train" not in done.stdout


def test_a_preset_can_be_shown_copied_and_run_from_the_copy(tmp_path: Path) -> None:
    shown = rlctl("presets", "show", "sokoban-cpu", cwd=tmp_path).stdout
    assert shown == presets.find("sokoban-cpu").read_text()
    assert rlctl("presets", "copy", "sokoban-cpu", "mine.toml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "mine.toml").read_text() == shown
    assert rlctl("config", "validate", "mine.toml", cwd=tmp_path).returncode == 0
    assert rlctl("presets", "copy", "sokoban-cpu", "mine.toml", cwd=tmp_path).returncode == 2
    listed = json.loads(rlctl("presets", "ls", "--json", cwd=tmp_path).stdout)
    assert {row["name"] for row in listed} == set(presets.names())
    assert all(row["about"] for row in listed)


def test_explain_tells_meaning_value_and_place(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "frozenlake-cpu"\n[train.optim]\nlr = 5e-4\n')
    done = rlctl("config", "explain", "train.optim.lr", "mine.toml", "--json", cwd=tmp_path)
    (row,) = json.loads(done.stdout)
    assert (row["value"], row["place"], row["default"]) == (5e-4, "mine.toml:3", 1e-6)
    done = rlctl("config", "explain", "env.0.size", "frozenlake-cpu", "-s", "env.0.size=5", cwd=tmp_path)
    assert "env.size = 5  (-s env.0.size=5)" in done.stdout
    assert "Side of the square lake" in done.stdout
    done = rlctl("config", "explain", "pool.max_stale", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: no key pool.max_stale; did you mean 'pool.max_staleness'?\n")


def test_diff_schema_and_show(tmp_path: Path) -> None:
    rows = json.loads(rlctl("config", "diff", "frozenlake-cpu", "sokoban-cpu", "--json", cwd=tmp_path).stdout)
    assert {"key": "env.0.max_turns", "first": 10, "second": 4} in rows
    assert "run.seed" not in {row["key"] for row in rows}
    schema = json.loads(rlctl("config", "schema", cwd=tmp_path).stdout)
    assert "watchdog_s" in json.dumps(schema)
    shown = rlctl("config", "show", "sokoban-cpu", cwd=tmp_path).stdout
    (tmp_path / "resolved.toml").write_text(shown)
    assert load([tmp_path / "resolved.toml"], environ={}).toml() == shown


def test_doctor_reports_and_succeeds_here(tmp_path: Path) -> None:
    done = rlctl("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert {"python", "torch", "gpu", "disk", "ports"} <= {row["name"] for row in json.loads(done.stdout)}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A dead run."""
    folder = tmp_path / "run"
    for name in ("components", "logs", "metrics"):
        (folder / name).mkdir(parents=True)
    (folder / "resolved.toml").write_text('[model]\ninit = "tiny"\n')
    (folder / "components" / "pool.json").write_text(
        '{"name": "pool", "pid": 4194305, "url": "tcp://x", "state": "ready"}'
    )
    (folder / "logs" / "pool.log").write_text("".join(f"line {i}\n" for i in range(100)))
    (folder / "logs" / "train.log").write_text("trained\n")
    (folder / "metrics" / "pool.jsonl").write_text('{"t": 1.0, "policy_version": 7, "train.created": 3}\n')
    return folder


def test_status_of_a_dead_run(run_dir: Path) -> None:
    found = json.loads(rlctl("status", run_dir, "--json", cwd=run_dir).stdout)
    expected = {"name": "pool", "pid": 4194305, "url": "tcp://x", "state": "dead", "policy_version": 7}
    assert found["components"] == [expected]
    assert found["run"]["status"] == "unknown"
    assert "dead" in rlctl("status", run_dir, cwd=run_dir).stdout


def test_logs_of_one_component_or_of_all(run_dir: Path) -> None:
    assert rlctl("logs", run_dir, "pool", "-n", "2", cwd=run_dir).stdout == "line 98\nline 99\n"
    assert "train      | trained" in rlctl("logs", run_dir, cwd=run_dir).stdout
    done = rlctl("logs", run_dir, "pol", cwd=run_dir)
    assert (done.returncode, done.stderr) == (2, "error: no log of 'pol'; did you mean 'pool'?\n")


def test_stop_and_report_of_a_dead_run(run_dir: Path) -> None:
    assert json.loads(rlctl("stop", run_dir, "--json", cwd=run_dir).stdout)["stopped"] == []
    summary = json.loads(rlctl("report", run_dir, "--json", cwd=run_dir).stdout)
    assert summary == json.loads((run_dir / "summary.json").read_text())
    assert summary["samples"]["created"] == summary["samples"]["open"] == 3
