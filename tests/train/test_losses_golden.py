"""Every loss against an independent float64 numpy implementation of the papers' formulas, and its gradient."""

from typing import Any

import numpy as np
import pytest
import torch

from rlctl.config.algorithm import Algo, Correction
from rlctl.train.learning.companions import blend
from rlctl.train.objective.divergence import ESTIMATORS, full
from rlctl.train.objective.losses import correction_weights, policy_loss, proximal, value_loss
from rlctl.train.objective.tokens import Tokens

N, V = 14, 9
SEQUENCES = np.array([0] * 5 + [1] * 1 + [2] * 8)


class Case:
    """Random logits with everything that a loss may look at; `spread` is how far the policies lie apart."""

    def __init__(self, seed: int = 0, spread: float = 0.4) -> None:
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(size=(N, V))
        self.targets = rng.integers(0, V, N)
        self.p = np.exp(self.logits) / np.exp(self.logits).sum(1, keepdims=True)
        self.logp = np.log(self.p[np.arange(N), self.targets])
        self.behaviour = self.logp + rng.normal(size=N) * spread
        self.prox = self.logp + rng.normal(size=N) * spread
        self.blend = rng.uniform(size=N)
        self.a, self.w = rng.normal(size=N), rng.uniform(0.1, 1, N)
        self.q = rng.dirichlet(np.ones(V), N)
        self.ref = np.log(self.q[np.arange(N), self.targets])
        self.entropy = -(self.p * np.log(self.p)).sum(1)
        self.values, self.old_values, self.returns = (rng.normal(size=N) for _ in range(3))

    def tokens(self, *names: str, divergence: torch.Tensor | None = None) -> Tokens:
        known = {"proximal": self.prox, "blend": self.blend, "reference": self.ref}
        known |= {"values": self.old_values, "returns": self.returns}
        t = torch.from_numpy
        columns = {name: t(known[name]) for name in names}
        return Tokens(t(self.behaviour), t(self.a), t(self.w), t(SEQUENCES), columns, divergence)

    def loss(self, logits: torch.Tensor, algo: Algo, *names: str) -> torch.Tensor:
        logs = logits.log_softmax(1)
        divergence = full(logs, torch.from_numpy(np.log(self.q)))
        entropies = -(logs.exp() * logs).sum(1)
        logprobs = logs[torch.arange(N), torch.from_numpy(self.targets)]
        return policy_loss(logprobs, entropies, self.tokens(*names, divergence=divergence), algo)[0]

    def ours(self, algo: Algo, *names: str) -> float:
        return float(self.loss(torch.from_numpy(self.logits), algo, *names))


def mean_by_sequence(x: np.ndarray) -> np.ndarray:
    return np.array([x[s == SEQUENCES].mean() for s in SEQUENCES])


def clipped(r: np.ndarray, a: np.ndarray, low: float, high: float) -> np.ndarray:
    return -np.minimum(r * a, np.clip(r, 1 - low, 1 + high) * a)


def dual(c: Case, r: np.ndarray) -> np.ndarray:
    ppo = clipped(r, c.a, 0.2, 0.28)
    return np.where(c.a < 0, np.minimum(ppo, -1.5 * c.a), ppo)


def sapo(c: Case, r: np.ndarray) -> np.ndarray:
    tau = np.where(c.a > 0, 1.0, 1.3)
    return -c.a * 4 / tau / (1 + np.exp(-tau * (r - 1)))


SURROGATES: dict[str, tuple[dict[str, Any], Any]] = {
    "ppo": ({}, lambda c, r: clipped(r, c.a, 0.2, 0.28)),
    "dual clip": ({"dual_clip": 1.5}, dual),
    "gspo": ({"loss": "gspo", "clip_low": 0.03, "clip_high": 0.04},
             lambda c, r: clipped(np.exp(mean_by_sequence(np.log(r))), c.a, 0.03, 0.04)),
    "cispo": ({"loss": "cispo", "clip_low": 1.0}, lambda c, r: -np.clip(r, 0, 1.28) * c.a * c.logp),
    "sapo": ({"loss": "sapo", "sapo_tau_negative": 1.3}, sapo),
    "policy gradient": ({"loss": "policy_gradient"}, lambda c, r: -c.a * c.logp),
}  # fmt: skip


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("old", ["behaviour", "recompute"])
@pytest.mark.parametrize("seed", range(3))
def test_surrogates_agree_with_the_papers(name: str, old: str, seed: int) -> None:
    case, (settings, formula) = Case(seed), SURROGATES[name]
    denominator = case.behaviour if old == "behaviour" else case.prox
    expected = (case.w * formula(case, np.exp(case.logp - denominator))).sum()
    columns = ["proximal"] if old == "recompute" else []
    assert case.ours(Algo(old=old, **settings), *columns) == pytest.approx(expected, abs=1e-9)


KLS = {
    "k1": lambda c: c.logp - c.ref,
    "abs": lambda c: abs(c.logp - c.ref),
    "k2": lambda c: (c.logp - c.ref) ** 2 / 2,
    "k3": lambda c: np.exp(c.ref - c.logp) - 1 - (c.ref - c.logp),
    "full": lambda c: (c.p * np.log(c.p / c.q)).sum(1),
}


@pytest.mark.parametrize("kind", KLS)
def test_kl_in_the_loss_agrees_with_its_definition(kind: str) -> None:
    case = Case(1)
    algo = Algo(kl={"coef": 0.3, "kind": kind})
    expected = case.ours(Algo()) + 0.3 * (case.w * KLS[kind](case)).sum()
    assert case.ours(algo, "reference") == pytest.approx(expected, abs=1e-9)


def test_k3_and_k1_are_unbiased_for_the_full_divergence() -> None:
    """The expectation over the policy's own tokens, exactly."""
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
    exact = full(p.log()[None], q.log()[None]).item()
    for kind in ("k1", "k3"):
        assert (p * ESTIMATORS[kind](p.log(), q.log())).sum().item() == pytest.approx(exact)
    assert exact == pytest.approx(0.7 * np.log(3.5) + 0.2 * np.log(0.4) + 0.1 * np.log(1 / 3))


def test_on_policy_the_gradient_of_k2_is_that_of_the_full_divergence_and_that_of_k1_is_zero() -> None:
    z = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.5, 0.3]).double().log()
    p = z.log_softmax(0)
    (exact,) = torch.autograd.grad(full(p[None], q[None]).sum(), z, retain_graph=True)
    expected = {"k1": torch.zeros(3).double(), "k2": exact}
    for kind, wanted in expected.items():
        (found,) = torch.autograd.grad((p.detach().exp() * ESTIMATORS[kind](p, q)).sum(), z, retain_graph=True)
        assert torch.allclose(found, wanted, atol=1e-12), kind


def weights_by_definition(c: Case, level: str, mode: str, cap: float, floor: float) -> np.ndarray:
    d = c.prox - c.behaviour
    if level == "sequence":
        d = np.array([d[s == SEQUENCES].sum() for s in SEQUENCES])
    if level == "geometric":
        d = mean_by_sequence(d)
    w = np.exp(d)
    return np.minimum(w, cap) if mode == "truncate" else np.where((w >= floor) & (w <= cap), w, 0)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_corrections_agree_with_their_definition(level: str, mode: str) -> None:
    case = Case(2)
    settings = {"level": level, "mode": mode, "cap": 1.2, "floor": 0.8}
    weights = weights_by_definition(case, level, mode, 1.2, 0.8)
    assert (weights == 0).any() == (mode == "mask"), "the case is one where the bounds bite"
    ratio = np.exp(case.logp - case.prox)
    expected = (case.w * weights * clipped(ratio, case.a, 0.2, 0.28)).sum()
    assert case.ours(Algo(old="recompute", correction=settings), "proximal") == pytest.approx(expected, abs=1e-9)


def test_truncated_and_masked_weights_by_hand() -> None:
    given = Tokens(torch.zeros(3), torch.ones(3), torch.ones(3), torch.tensor([0, 0, 1]))
    old = torch.tensor([4.0, 0.25, 0.5]).log()
    by_hand = {"token": [2, 0.25, 0.5], "sequence": [1, 1, 0.5], "geometric": [1, 1, 0.5]}
    for level, expected in by_hand.items():
        assert correction_weights(old, given, Correction(level=level)).tolist() == pytest.approx(expected)
    masked = correction_weights(old, given, Correction(level="token", mode="mask", floor=0.3))
    assert masked.tolist() == pytest.approx([0, 0, 0.5])


def test_decoupled_ppo_is_the_clip_around_the_proximal_policy_times_the_masked_behaviour_weight() -> None:
    """arXiv 2505.24298: `(prox / behaviour) min(u A, clip(u) A)`, u = policy / prox, tokens above the cap left out."""
    case = Case(3, spread=0.8)
    algo = Algo(old="recompute", correction={"level": "token", "mode": "mask", "cap": 2.0})
    w = np.exp(case.prox - case.behaviour)
    u = np.exp(case.logp - case.prox)
    expected = -(case.w * (w <= 2) * w * np.minimum(u * case.a, np.clip(u, 0.8, 1.28) * case.a)).sum()
    assert case.ours(algo, "proximal") == pytest.approx(expected, abs=1e-9)


def test_the_proximal_policy_is_interpolated_by_versions() -> None:
    # v = 5 is being learned: tokens of version 4 are on policy (0), of 3 half way, of 1 three quarters.
    assert blend(np.array([4, 3, 1, 5]), 5).tolist() == [0, 0.5, 0.75, 0]
    given = Tokens(torch.tensor([-2.0]), torch.ones(1), torch.ones(1), columns={"blend": torch.tensor([0.5])})
    logprobs = torch.tensor([-1.0], requires_grad=True)
    guess = proximal(logprobs, given)
    assert guess.tolist() == [-1.5] and not guess.requires_grad


def test_value_loss_agrees_with_its_definition() -> None:
    case = Case(4)
    for clip in (0.0, 0.2):
        for huber in (0.0, 0.5):

            def h(e: np.ndarray, d: float = huber) -> np.ndarray:
                return np.where(abs(e) <= d, e**2 / 2, d * (abs(e) - d / 2)) if d else e**2 / 2

            expected = h(case.values - case.returns)
            if clip:
                near = case.old_values + np.clip(case.values - case.old_values, -clip, clip)
                expected = np.maximum(expected, h(near - case.returns))
            ours, _ = value_loss(torch.from_numpy(case.values), case.tokens("values", "returns"), clip, huber)
            assert ours.item() == pytest.approx((case.w * expected).sum(), abs=1e-9)


def test_value_loss_by_hand() -> None:
    given = Tokens(
        torch.zeros(2), torch.zeros(2), torch.ones(2), columns={"returns": torch.ones(2), "values": torch.zeros(2)}
    )
    # V = 1 is right, but only 0.5 of the way is credited: (0.5 - 1)^2 / 2. V = -1: |e| = 2 either way worst: 2.
    assert value_loss(torch.tensor([1.0, -1.0]), given, 0.5, 0.0)[0].item() == pytest.approx(0.125 + 2.0)
    assert value_loss(torch.tensor([1.0, -1.0]), given, 0.0, 1.0)[0].item() == pytest.approx(0 + 1.5)


SMOOTH: dict[str, dict[str, Any]] = {
    **{name: settings for name, (settings, _) in SURROGATES.items() if name in ("ppo", "dual clip", "sapo")},
    **{f"kl {kind}": {"kl": {"coef": 0.3, "kind": kind}} for kind in KLS},
    "corrected": {"old": "recompute", "correction": {"level": "sequence"}},
    "entropy": {"entropy_bonus": 0.1},
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_equal_finite_differences(name: str) -> None:
    case, algo = Case(5), Algo(**SMOOTH[name])
    columns = ["reference"] + (["proximal"] if algo.old == "recompute" else [])
    logits = torch.from_numpy(case.logits).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: case.loss(z, algo, *columns), (logits,))


def test_the_gradient_of_gspo_weighs_every_token_of_a_sequence_with_the_sequences_ratio() -> None:
    """Not a finite difference: the ratio is that of the sequence, the gradient goes through the token."""
    case = Case(6, spread=0.01)
    logprobs = torch.from_numpy(case.logp).requires_grad_()
    entropies = torch.from_numpy(case.entropy)
    policy_loss(logprobs, entropies, case.tokens(), Algo(loss="gspo", clip_low=0.5, clip_high=0.5))[0].backward()
    sequence = np.exp(mean_by_sequence(case.logp - case.behaviour))
    assert logprobs.grad is not None
    assert logprobs.grad.numpy() == pytest.approx(-case.w * case.a * sequence, abs=1e-12)


def test_cispo_keeps_the_gradient_of_tokens_beyond_the_clip() -> None:
    given = Tokens(torch.log(torch.tensor([0.1])), torch.ones(1), torch.ones(1))
    logprobs = torch.log(torch.tensor([0.5])).requires_grad_()
    policy_loss(logprobs, torch.zeros(1), given, Algo(loss="cispo"))[0].backward()
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(-1.28)
