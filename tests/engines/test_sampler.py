"""Sampling: the distribution is the one asked for, and the logprob is of exactly that distribution."""

import math

import numpy as np
import pytest
import torch

from rlctl.engines.embedded.sampler import Settings, processed_logprobs, sample

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))


def settings(
    rows: int = 1, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> Settings:
    cut = top_p < 1 or top_k > 0 or min_p > 0
    return Settings(
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k),
        torch.full((rows,), min_p),
        torch.arange(rows) if cut else None,
    )


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.76}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0]),
        ({"min_p": 0.3}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),
        ({"temperature": 0.5}, [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]),
        ({"temperature": 0.0, "top_k": 1}, [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_processed_logprobs_by_hand(cut: dict[str, float], expected: list[float]) -> None:
    got = processed_logprobs(LOGITS[None], settings(**cut)).exp()[0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=1e-5)


def test_cut_rows_leave_the_other_rows_alone() -> None:
    mixed = Settings(torch.ones(2), torch.ones(2), torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1]))
    got = processed_logprobs(LOGITS.expand(2, 4), mixed).exp()
    torch.testing.assert_close(got, torch.tensor([[0.5, 0.25, 0.15, 0.1], [1.0, 0, 0, 0]]))


@pytest.mark.parametrize("cut", [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8, "temperature": 1.5}])
def test_frequencies_pass_a_chi_square_test(cut: dict[str, float]) -> None:
    draws = 20_000
    asked = settings(draws, **cut)
    uniform = torch.from_numpy(np.random.default_rng(0).random(draws))
    tokens, logprobs = sample(LOGITS.expand(draws, 4), asked, uniform)
    expected = processed_logprobs(LOGITS[None], settings(**cut)).exp()[0].double()
    counts = torch.bincount(tokens, minlength=4).double()
    assert not counts[expected == 0].any()
    possible = expected > 0
    chi_square = ((counts - draws * expected)[possible] ** 2 / (draws * expected[possible])).sum()
    assert chi_square < 16.27  # 99.9% quantile for 3 degrees of freedom
    torch.testing.assert_close(logprobs.double(), expected.log()[tokens], atol=1e-5, rtol=1e-5)


def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).expand(2, 4)
    tokens, _ = sample(logits, settings(2), torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 2]


def test_temperature_zero_takes_the_most_likely_token() -> None:
    tokens, logprobs = sample(LOGITS[None], settings(temperature=0.0), torch.tensor([0.99], dtype=torch.float64))
    assert tokens.tolist() == [0]
    assert logprobs[0].exp().item() == pytest.approx(0.5)
