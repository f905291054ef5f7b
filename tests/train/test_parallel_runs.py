"""Whole runs of `rlctl train` on ranks that work together: the rows of one process, and its resume."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlctl.telemetry.metrics import read

from .conftest import FakeEngine, config_for
from .test_loop import final_weights, finished, record, replay, run, torchrun

SECTIONS: dict[str, Any] = {
    "algo": {"old": "recompute", "kl": {"coef": 0.1}, "advantage": "gae", "whiten": True},
    "critic": {"optim": {"lr": 1e-3, "eps": 1e-4}},
    "monitor": {"layer_grad_norms": True},
}
"""Everything that is measured or trained beside the policy."""
OPTIM = {"optim": {"lr": 1e-3, "eps": 1e-4}}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "batches", 6)


@pytest.fixture(scope="module")
def straight(model_dir: Path, tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Path:
    """Six steps of one process."""
    folder = tmp_path_factory.mktemp("straight")
    run(replay(model_dir, folder, recorded, 6, train=OPTIM, **SECTIONS))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("parallel", "processes"),
    [({"tensor": 2}, 2), ({"sequence": 2}, 2), ({"pipeline": 2}, 2), ({"pipeline": 2}, 4)],
    ids=str,
)
def test_processes_that_work_together_log_save_and_resume_as_one(
    parallel: dict[str, int],
    processes: int,
    model_dir: Path,
    tmp_path: Path,
    recorded: Path,
    straight: Path,
    engine: FakeEngine,
) -> None:
    train, sections = OPTIM | {"parallel": parallel}, SECTIONS | {"engine": {"urls": [engine.url]}}
    finished(torchrun(replay(model_dir, tmp_path, recorded, 3, train=train, **sections), tmp_path, processes))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / "step_3" / "hf", dtype=torch.float32)
    ours = final_weights(config_for(model_dir, tmp_path), 3)
    assert all(torch.equal(ours[name], value) for name, value in saved.state_dict().items() if name in ours)
    published = load_file(tmp_path / "weights" / "v3" / "model.safetensors")
    assert engine.told[-1]["version"] == 3 and set(published) == set(ours)
    assert all(torch.equal(published[name], value) for name, value in ours.items())
    theirs = final_weights(config_for(model_dir, straight), 3)
    assert set(ours) == set(theirs)
    assert all(torch.linalg.norm(ours[k] - theirs[k]) < 1e-5 * torch.linalg.norm(theirs[k]) for k in theirs)
    run(replay(model_dir, tmp_path, recorded, 6, train=OPTIM, **SECTIONS))
    alike(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_stages_in_bfloat16_are_near_one_process(model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    rows = []
    for stages in (1, 2):
        (tmp_path / f"{stages}").mkdir()
        sections = SECTIONS | {"model": {"dtype": "bfloat16"}, "train": OPTIM | {"parallel": {"pipeline": stages}}}
        config = replay(model_dir, tmp_path / f"{stages}", recorded, 1, **sections)
        finished(torchrun(config, tmp_path, stages))
        rows += list(read(config.run_dir / "metrics" / "train.jsonl"))
    one, two = rows
    for key in ("loss", "grad_norm", "entropy", "value_loss"):
        assert two[key] == pytest.approx(one[key], rel=0.02), key


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"pipeline": 2}], ids=str)
def test_a_run_of_one_process_goes_on_with_two_that_work_together(
    parallel: dict[str, int], model_dir: Path, tmp_path: Path, recorded: Path, straight: Path
) -> None:
    shutil.copytree(straight / "checkpoints" / "step_3", tmp_path / "checkpoints" / "step_3")
    (tmp_path / "checkpoints" / "latest").write_text("step_3")
    finished(
        torchrun(
            replay(model_dir, tmp_path, recorded, 6, train=OPTIM | {"parallel": parallel}, **SECTIONS), tmp_path, 2
        )
    )
    alike(tmp_path, straight)


def alike(folder: Path, straight: Path) -> None:
    """The same rows, as far as `folder` has them."""
    expected = {row["step"]: row for row in read(straight / "metrics" / "train.jsonl")}
    rows = list(read(folder / "metrics" / "train.jsonl"))
    assert rows[-1]["step"] == 6
    for row in rows:
        one = expected[row["step"]]
        for key in ("loss", "grad_norm", "entropy", "kl_reference", "value_loss", "critic_grad_norm", "ratio"):
            assert row.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=1e-4, abs=1e-6), key
        for key in ("tokens", "updates", "samples", "sequences"):
            assert row.get(key) == one.get(key), key
    found, norms = (layer_norms(path) for path in (folder, straight))
    assert list(found)[-4:] == [(6, f"model.{layer}") for layer in ("embed_tokens", "layers.0", "layers.1", "norm")]
    assert found == pytest.approx({key: norms[key] for key in found}, rel=1e-4, abs=1e-6)


def layer_norms(folder: Path) -> dict[tuple[int, str], float]:
    return {(row["step"], row["layer"]): row["grad_norm"] for row in read(folder / "metrics" / "grad_norms.jsonl")}
