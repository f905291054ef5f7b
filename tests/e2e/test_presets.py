"""The presets of other packages' environments, as they are but for their length."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.running import finish, left_running, rows, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["reasoning_gym", "textarena", "verifiers"])
def test_an_environment_of_another_package_is_trained(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'examples'}")
    run_dir, preset = tmp_path / "run", f"{name.replace('_', '-')}-cpu"
    settings = ("run.steps=4", "train.groups_per_step=4", "train.minibatches=1", "eval.0.episodes=4")
    code, out, err = finish(start(run_dir, "--json", preset=preset, settings=settings))
    assert code == 0, err[-3000:]
    summary = json.loads(out)
    samples = summary["samples"]
    assert (summary["steps"], samples["failed"]) == (4, 0)
    assert samples["trained"] + samples["zero_variance"] >= 4 * 4 * 8
    assert samples["trained"] > 0, "an untrained model wins nothing, but its groups must differ in something"
    assert [row["episodes"] for row in summary["eval"]] == [4, 4]
    assert len(rows(run_dir, "train")) == 4
    assert left_running(run_dir) == []
