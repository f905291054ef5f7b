"""Precedence, `extends`, provenance, and the resolved file."""

from pathlib import Path

import pytest

from rlctl.config import load, presets
from rlctl.errors import ConfigError

BASE = '[model]\ninit = "tiny"\n\n[run]\nsteps = 1\nseed = 1\nname = "base"\n'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\n\n[run]\nsteps = 2\nseed = 2\n')
    (tmp_path / "last.toml").write_text("[run]\nsteps = 3\n")
    return tmp_path


def test_later_sources_win(files: Path) -> None:
    sources = [files / "mine.toml", files / "last.toml"]
    environ = {"RLCTL__RUN__SEED": "4", "OTHER": "x"}
    found = load(sources, ["run.seed=5"], environ)
    run = found.config.run
    assert (run.name, run.steps, run.seed) == ("base", 3, 5)
    assert load(sources, environ=environ).config.run.seed == 4
    assert load(sources, environ={}).config.run.seed == 2


def test_every_value_remembers_its_place(files: Path) -> None:
    found = load([files / "mine.toml"], ["pool.port=1"], {"RLCTL__TRAIN__THREADS": "2"})
    places = found.places
    assert places["run", "name"] == f"{files}/base.toml:7"
    assert places["run", "steps"] == f"{files}/mine.toml:4"
    assert places["train", "threads"] == "RLCTL__TRAIN__THREADS"
    assert places["pool", "port"] == "-s pool.port=1"
    assert ("run", "dir") not in places


def test_tables_are_merged_and_lists_replaced(files: Path) -> None:
    (files / "envs.toml").write_text('[[env]]\nname = "frozenlake"\nsize = 5\n[[env]]\nname = "sokoban"\n')
    (files / "one.toml").write_text('extends = "envs.toml"\n[model]\ninit = "tiny"\n[[env]]\nname = "sokoban"\n')
    found = load([files / "one.toml"], ["env[0].rows=7"], {})
    assert [env.name for env in found.config.env] == ["sokoban"]
    assert found.config.env[0].options == {"rows": 7}
    assert ("env", "1", "name") not in found.places


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(ConfigError, match="circle"):
        load([tmp_path / "a.toml"], environ={})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.steps", "expected section.key=value"),
        ("run.steps.x=1", "run.steps is a value, not a table"),
        ("env[3].size=1", "-s env.*expected an item number from 0 to 0"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(files: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load([files / "mine.toml"], ['env=[{name="sokoban"}]', override], {})


@pytest.mark.parametrize("name", presets.names())
def test_the_resolved_file_gives_the_same_configuration_and_the_same_bytes(tmp_path: Path, name: str) -> None:
    first = load([name], environ={})
    (tmp_path / "resolved.toml").write_text(first.toml())
    second = load([tmp_path / "resolved.toml"], environ={})
    assert second.config == first.config
    assert second.toml() == first.toml() == load([name], environ={}).toml()


def test_a_text_that_is_no_toml_value_is_a_string(files: Path) -> None:
    found = load([files / "mine.toml"], ["run.dir=/some/where", "run.name=x-1"], {}).config
    assert (found.run.dir, found.run.name) == ("/some/where", "x-1")


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("val.success_rate", ""),
        ("hard.mean_reward", ""),
        ("success_rate", "ckpt.best_metric.* is not measured; there is val.success_rate, val.mean_reward, hard.succ"),
        ("val.loss", "ckpt.best_metric.* = 'val.loss' is not measured"),
        ("greedy.success_rate", "ckpt.best_metric.* = 'greedy.success_rate' is not measured"),
    ],
)
def test_the_metric_of_the_best_checkpoint_is_one_that_is_measured(files: Path, metric: str, message: str) -> None:
    settings = ['env=[{name="sokoban"}]', 'eval=[{name="val"}, {name="hard"}]', f"ckpt.best_metric={metric}"]
    if not message:
        assert load([files / "mine.toml"], settings, {}).config.ckpt.best_metric == metric
        return
    with pytest.raises(ConfigError, match=message):
        load([files / "mine.toml"], settings, {})


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ('["tensorboard", "wandb"]', ""),
        ('["my.module:Class"]', ""),
        ('["tensorbord"]', "monitor.trackers: .*no tracker 'tensorbord'; did you mean 'tensorboard'"),
        ('["zzz"]', "there are: tensorboard, wandb, swanlab, module:Class"),
        ('["wandb", "wandb"]', "a tracker is named twice"),
    ],
)
def test_trackers_are_known_by_name_or_by_class(files: Path, trackers: str, message: str) -> None:
    if not message:
        load([files / "mine.toml"], [f"monitor.trackers={trackers}"], {})
        return
    with pytest.raises(ConfigError, match=message):
        load([files / "mine.toml"], [f"monitor.trackers={trackers}"], {})


def test_a_problem_of_a_whole_table_names_the_place_of_the_key_it_speaks_of(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('[model]\ninit = "tiny"\n[gateway]\nport = 80\n\n[[env]]\nname = "nowhere"\n')
    with pytest.raises(ConfigError) as caught:
        load([preset], ["gateway.host=0.0.0.0"], environ={})
    host, name = caught.value.problems
    assert host.startswith("-s gateway.host=0.0.0.0: gateway: host = '0.0.0.0' can be reached")
    assert name.startswith(f"{preset}:7: env.0: name = 'nowhere' is no environment")
