"""`--resume`: which run, with which configuration, and what is not done again."""

import json
import os
from pathlib import Path

import pytest

from rlctl.config import Loaded, load
from rlctl.errors import ConfigError
from rlctl.up import run
from rlctl.up.planning.checks import claim


def loaded(*overrides: str) -> Loaded:
    return load(["frozenlake-cpu"], overrides, environ={})


def names(setup: run.Setup) -> list[str]:
    return [spec.name for spec in setup.specs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose warm start has ended."""
    made = tmp_path / "run"
    (made / "components").mkdir(parents=True)
    (made / "components" / "sft.json").write_text('{"name": "sft", "pid": 1, "url": "", "state": "done"}')
    (made / "resolved.toml").write_text(loaded().toml())
    return made


def test_a_finished_warm_start_is_not_done_again(folder: Path) -> None:
    setup = run.set_up(loaded(), folder, resume=True, only=[])
    assert "sft" not in names(setup)
    assert all("sft" not in spec.needs for spec in setup.specs)
    assert setup.run_dir == folder


def test_an_unfinished_one_is(folder: Path) -> None:
    (folder / "components" / "sft.json").write_text('{"name": "sft", "pid": 1, "url": "", "state": "ended"}')
    assert "sft" in names(run.set_up(loaded(), folder, resume=True, only=[]))


def test_without_a_directory_the_newest_run_of_that_name_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no run of 'frozenlake-cpu'"):
        run.latest(loaded())
    for stamp in ("20260101-000000", "20260102-000000"):
        (tmp_path / "runs" / "frozenlake-cpu" / stamp).mkdir(parents=True)
        (tmp_path / "runs" / "frozenlake-cpu" / stamp / "resolved.toml").touch()
    assert run.latest(loaded()).name == "20260102-000000"
    assert run.latest(loaded("run.dir=/some/where")) == Path("/some/where")


def test_a_full_directory_is_refused_and_the_way_out_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not empty; `rlctl up --resume .*` goes on with that run"):
        claim(folder, resume=False, where="run.dir")
    claim(folder, resume=True, where="run.dir")


def test_a_run_that_is_running_is_not_resumed(folder: Path) -> None:
    life = {
        "pid": os.getpid(),
        "status": "running",
        "error": "",
        "name": "x",
        "steps": 1,
        "started": 0.0,
        "wall_s": 1.0,
    }
    (folder / "up.json").write_text(json.dumps(life))
    setup = run.set_up(loaded(), folder, resume=True, only=[])
    with pytest.raises(ConfigError, match="is running already"):
        run._claim(setup)


def test_two_runs_in_the_same_second_get_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.time, "strftime", lambda form: "20260101-000000")
    first = run.set_up(loaded(), None, resume=False, only=[]).run_dir
    first.mkdir(parents=True)
    second = run.set_up(loaded(), None, resume=False, only=[]).run_dir
    assert second == first.with_name("20260101-000000-2")


def test_the_life_of_a_resumed_run_adds_up(folder: Path) -> None:
    setup = run.set_up(loaded(), folder, resume=True, only=[])
    first = run.Life(setup)
    first.end("interrupted", "")
    before = json.loads((folder / "up.json").read_text())["wall_s"]
    run.Life(setup).end("ok", "")
    after = json.loads((folder / "up.json").read_text())
    assert after["wall_s"] > before > 0
    assert after["status"] == "ok"
