from pathlib import Path

import pytest

from rlctl.config.learning import Optim
from rlctl.train.learning.optim import Schedule
from rlctl.train.model.policy import load
from rlctl.train.monitor.effort import flops, flops_of, peak_memory_mb
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .running import record, replay, run
from .test_batches import sample


def test_flops_by_hand() -> None:
    # 10 weights, 3 + 1 tokens; attention of 2 layers of width 4 over 9 + 1 pairs.
    assert flops([3, 1], parameters=10, trained=10, layers=2, width=4) == 6 * 10 * 4 + 6 * 2 * 4 * 10
    assert flops([3, 1], parameters=10, trained=1, layers=2, width=4) == (4 * 10 + 2 * 1) * 4 + 6 * 2 * 4 * 10


def test_a_tied_embedding_counts_once_as_the_output_layer(model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path)
    policy = load(str(model_dir), config, Ranks(config))
    whole = sum(p.numel() for p in policy.parameters())
    assert flops_of([sample("a", [(3, 2)])], policy, 2) == 2 * flops([5], whole, whole, layers=2, width=64)


def test_frozen_weights_under_adapters_cost_no_gradients_of_their_own(model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, train={"lora": {"rank": 2}})
    policy = load(str(model_dir), config, Ranks(config))
    whole = sum(p.numel() for p in policy.parameters())
    adapters = sum(p.numel() for name, p in policy.named_parameters() if "lora_" in name)
    assert 0 < adapters < whole
    assert flops_of([sample("a", [(3, 2)])], policy, 1) == flops([5], whole, adapters, layers=2, width=64)


def test_speed_memory_and_utilisation_are_in_the_metrics(model_dir: Path, tmp_path: Path) -> None:
    recorded = record(tmp_path / "batches", 1)
    (row,) = run(replay(model_dir, tmp_path / "run", recorded, 1, monitor={"peak_tflops": 0.5}))
    assert row["tflops_per_s"] > 0 and row["mfu"] == pytest.approx(row["tflops_per_s"] / 0.5)
    assert 50 < row["peak_memory_mb"] < peak_memory_mb() + 1  # the kernel counts pages in batches


def test_warm_up_as_a_fraction_of_all_steps_yields_to_a_number_of_steps() -> None:
    fraction = Schedule(Optim(lr=1.0, warmup_fraction=0.4), total=10)
    assert [fraction.lr(n) for n in (0, 2, 4, 9)] == pytest.approx([0.0, 0.5, 1.0, 1.0])
    assert Schedule(Optim(lr=1.0, warmup_fraction=0.4, warmup_steps=2), total=10).lr(2) == pytest.approx(1.0)
