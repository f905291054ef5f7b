import math

import pytest
import torch
from msgspec.structs import replace

from rlctl.config.algorithm import Algo
from rlctl.train.data.aggregation import aggregate
from rlctl.train.model.logits import score
from rlctl.train.objective.divergence import k3
from rlctl.train.objective.losses import nll, policy_loss
from rlctl.train.objective.surrogates import ppo_clip
from rlctl.train.objective.tokens import Tokens, add_up

from .test_batches import sample


def tokens(behaviour: list[float], advantages: list[float], weights: list[float] | None = None) -> Tokens:
    kind = torch.float64
    return Tokens(
        torch.tensor(behaviour, dtype=kind),
        torch.tensor(advantages, dtype=kind),
        torch.tensor(weights or [1.0] * len(behaviour), dtype=kind),
    )


def logs(ratios: list[float]) -> torch.Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


def test_token_logprobs_divide_by_the_temperature_of_each_token() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    values = score(logits, torch.tensor([1, 1]), torch.tensor([1.0, 0.5]))[0]
    assert values.exp().tolist() == pytest.approx([3 / 4, 9 / 10])


def test_entropy_of_a_fair_coin_is_ln_2_at_any_temperature() -> None:
    assert score(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), "value")[
        1
    ].tolist() == pytest.approx([math.log(2)] * 2)


def test_ppo_clip_by_hand() -> None:
    # A > 0: r = 1.5 clipped to 1.28, r = 0.5 kept. A < 0: r = 0.5 clipped to 0.8, r = 1.5 kept.
    given = tokens([0] * 4, [1, 1, -1, -1])
    loss, sums = ppo_clip(logs([1.5, 0.5, 0.5, 1.5]), given.behaviour, given, Algo())
    assert loss.tolist() == pytest.approx([-1.28, -0.5, 0.8, 1.5])
    assert (sums["clipped_high"], sums["clipped_low"], sums["clipped_dual"]) == (1, 1, 0)


def test_dual_clip_bounds_only_the_loss_of_bad_tokens() -> None:
    given = tokens([0, 0], [-2, 2])
    loss, sums = ppo_clip(logs([9.0, 9.0]), given.behaviour, given, Algo(dual_clip=3.0))
    assert loss.tolist() == pytest.approx([3 * 2, -1.28 * 2])
    assert sums["clipped_dual"] == 1


def test_k3_by_hand_and_never_negative() -> None:
    values = k3(torch.zeros(3, dtype=torch.float64), logs([2.0, 0.5, 1.0]))
    assert values.tolist() == pytest.approx([1 - math.log(2), math.log(2) - 0.5, 0])


def test_the_entropy_bonus_lowers_the_loss_by_bonus_times_entropy() -> None:
    plain, _ = policy_loss(logs([1.0, 1.0]), torch.tensor([0.5, 0.25]), tokens([0, 0], [1, 1]), Algo())
    bonus, _ = policy_loss(logs([1.0, 1.0]), torch.tensor([0.5, 0.25]), tokens([0, 0], [1, 1]), Algo(entropy_bonus=0.1))
    assert (plain - bonus).item() == pytest.approx(0.1 * 0.75)


def test_nll_sums_weighted_surprise() -> None:
    assert nll(logs([0.5, 0.25]), tokens([0, 0], [1, 1], [1, 2]))[0].item() == pytest.approx(5 * math.log(2))


@pytest.mark.parametrize("algo", [Algo(), Algo(dual_clip=1.5, entropy_bonus=0.01), Algo(clip_low=0.1, clip_high=0.1)])
def test_the_gradient_equals_finite_differences(algo: Algo) -> None:
    torch.manual_seed(0)
    targets, behaviour = torch.randint(0, 7, (12,)), -torch.rand(12, dtype=torch.float64) * 3
    given = Tokens(behaviour, torch.randn(12, dtype=torch.float64), torch.rand(12, dtype=torch.float64))
    warmth = torch.full((12,), 0.7, dtype=torch.float64)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits / warmth[:, None]
        logprobs = scaled.log_softmax(1).gather(1, targets[:, None])[:, 0]
        entropies = -(scaled.softmax(1) * scaled.log_softmax(1)).sum(1)
        return policy_loss(logprobs, entropies, given, algo)[0]

    assert torch.autograd.gradcheck(loss, (torch.randn(12, 7, dtype=torch.float64, requires_grad=True),))


def test_logprobs_and_entropy_agree_with_torch() -> None:
    torch.manual_seed(0)
    logits, targets, warmth = torch.randn(20, 11) * 5, torch.randint(0, 11, (20,)), torch.rand(20) + 0.5
    reference = torch.distributions.Categorical(logits=logits / warmth[:, None])
    logprobs, entropies = score(logits, targets, warmth, "value")
    assert torch.allclose(logprobs, reference.log_prob(targets), atol=1e-5)
    assert torch.allclose(entropies, reference.entropy(), atol=1e-5)


def test_aggregations_by_hand() -> None:
    """Losses 1 on four tokens of one sequence and 9 on the one token of another."""
    both = [sample("a", [(2, 4)]), sample("b", [(3, 1)])]
    expected = {"token_mean": 13 / 5, "seq_mean_token_sum": 13 / 2, "seq_mean_token_mean": 10 / 2}
    for kind, value in expected.items():
        weights, divisor = aggregate(both, kind)
        assert float(weights @ [1, 1, 1, 1, 9]) / divisor == pytest.approx(value), kind


def test_turn_prompt_and_constant_length_aggregations_by_hand() -> None:
    """A trajectory with turns of 1 and 3 tokens and one with a turn of 2, all of one prompt but the last."""
    one, two = sample("a", [(2, 1), (1, 3)]), sample("b", [(2, 2)])
    weights, divisor = aggregate([one, two], "seq_mean_turn_mean")
    assert weights == pytest.approx([1 / 2] + [1 / 6] * 3 + [1 / 2] * 2)
    assert divisor == 2
    grouped = [replace(one, group="p"), replace(two, group="p"), replace(sample("c", [(1, 5)]), group="q")]
    assert aggregate(grouped, "prompt_mean") == (pytest.approx([1 / 6] * 6 + [1 / 5] * 5), 2.0)
    assert aggregate([one, two], "constant_length", 100) == (pytest.approx([1.0] * 6), 200.0)


def test_the_forks_of_a_trajectory_are_one_sequence() -> None:
    forks = [sample("a", [(2, 1)], siblings_tokens=4), sample("a", [(2, 3)], siblings_tokens=4)]
    assert aggregate(forks, "seq_mean_token_mean") == (pytest.approx([0.25] * 4), 1.0)


def test_sums_add_and_maxima_are_maxima() -> None:
    assert add_up([{"a": 1.0, "max_b": -2.0}, {"a": 2.0, "max_b": -3.0}]) == {"a": 3.0, "max_b": -2.0}
