"""The lean forward pass and transformers' own, logit by logit."""

import numpy as np
import pytest
import torch

from rlctl.engines.embedded.kv import Inputs, Running, cut_runs
from rlctl.engines.embedded.lean import Lean
from tests.engines.models import CONTEXT, VOCABULARY, make


@pytest.mark.parametrize("kind", ["qwen2", "qwen2-untied", "qwen3", "llama", "llama-scaled"])
def test_lean_logits_equal_transformers_to_1e_5(kind: str) -> None:
    model = make(kind)
    lean = Lean(model, CONTEXT)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (3, 20)))
    cache = Running(lean.shape, budget=60, rows=3, length=20)
    with torch.inference_mode():
        expected = model(ids).logits
        rows, positions = torch.arange(3), torch.arange(20).expand(3, 20)
        last = torch.tensor([11, 5, 11])
        prefill = Inputs(ids[:, :12], positions[:, :12], rows, last, cut_runs([0, 1, 2], [12] * 3))
        torch.testing.assert_close(lean.forward(prefill, cache), expected[rows, last], atol=1e-5, rtol=1e-5)
        for place in range(12, 20):
            at = slice(place, place + 1)
            decode = Inputs(
                ids[:, at],
                positions[:, at],
                rows,
                torch.zeros(3, dtype=torch.long),
                cut_runs([0, 1, 2], [place + 1] * 3),
            )
            torch.testing.assert_close(lean.forward(decode, cache), expected[:, place], atol=1e-5, rtol=1e-5)


def test_growing_the_cache_keeps_what_is_there() -> None:
    lean = Lean(make(), CONTEXT)
    cache = Running(lean.shape, budget=1000, rows=2, length=4)
    cache.data.uniform_()
    before = cache.data.clone()
    cache.reserve(5, 9)
    assert cache.data.shape[1:4:2] == (8, 16)
    assert torch.equal(cache.data[:, :2, :, :4], before)
    assert not cache.data[:, 2:].any()


def test_growing_the_cache_gives_up_unused_rows_before_it_leaves_its_budget() -> None:
    lean = Lean(make(), CONTEXT)
    cache = Running(lean.shape, budget=100, rows=8, length=8)
    cache.data.uniform_()
    before = cache.data.clone()
    cache.reserve(2, 50)
    assert cache.data.shape[1:4:2] == (2, 50)
    assert torch.equal(cache.data[:, :, :, :8], before[:, :2])
