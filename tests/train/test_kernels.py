"""Liger's kernels: off where they cannot be, with the reason; what they compute, on a GPU (not run yet)."""

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rlctl.config.algorithm import Algo
from rlctl.errors import ConfigError
from rlctl.train.model.kernels import why_not
from rlctl.train.model.policy import load
from rlctl.train.ranks import Ranks

from .conftest import config_for
from .test_policy import gradient_of, loaded, with_columns


def test_true_is_refused_without_a_gpu(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.liger = true cannot be used: its kernels are for a GPU"):
        loaded(model_dir, tmp_path, liger=True)


def test_auto_does_without_and_says_why(model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        policy, _ = loaded(model_dir, tmp_path, liger="auto")
    assert "train.liger is off" in caplog.text
    assert all("liger" not in type(module).__module__ for module in policy.modules())


@pytest.mark.skipif(find_spec("liger_kernel") is not None, reason="the package is there")
def test_a_missing_package_is_named() -> None:
    assert "pip install liger-kernel" in why_not("qwen2", torch.device("cuda"))


@pytest.mark.gpu
def test_the_kernels_compute_the_same(model_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("liger_kernel")
    found = []
    for liger in (False, True):
        config = config_for(model_dir, tmp_path, deploy={"device": "cuda"}, train={"liger": liger})
        policy = load(str(model_dir), config, Ranks(config))
        found.append(gradient_of(policy, Algo(), with_columns(), {"micro_tokens": 512}, policy))
    (loss, gradient), (other, other_gradient) = found
    assert other == pytest.approx(loss, rel=1e-4)
    assert torch.linalg.norm(other_gradient - gradient) < 1e-3 * torch.linalg.norm(gradient)
