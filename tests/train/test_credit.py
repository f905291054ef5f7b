"""Token-level advantages against hand-worked numbers and plain sums written from the papers' definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rlctl.config.algorithm import Algo
from rlctl.train.data.samples import TrainSample, build
from rlctl.train.objective.advantages import remax, step_groups
from rlctl.train.objective.assign import assign, joined, spread, with_rewards
from rlctl.train.objective.credit import bi_level_gae, discounted, gae, place_rewards, whiten

from .test_batches import sample
from .test_samples import step

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def episodes(draw: st.DrawFn) -> Arrays:
    """Rewards, values and turn numbers of one trajectory."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    turns = np.repeat(np.arange(len(lengths)), lengths)
    return rng.normal(size=len(turns)), rng.normal(size=len(turns)), turns


def gae_by_definition(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Equation 16 of arXiv 1506.02438 as it stands: A_t = sum_l (gamma lam)^l d_{t+l}."""
    n = len(rewards)
    deltas = [rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
    return np.array([sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)])


@given(episodes(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_sum_of_its_definition(episode: Arrays, gamma: float, lam: float) -> None:
    rewards, values, _ = episode
    assert gae(rewards, values, gamma, lam) == pytest.approx(gae_by_definition(rewards, values, gamma, lam), abs=1e-9)


def test_gae_by_hand() -> None:
    # d = (0 + .5*.4 - .2, 1 + 0 - .4) = (0, .6); A = (0 + .5*.5*.6, .6)
    assert gae(np.array([0.0, 1.0]), np.array([0.2, 0.4]), 0.5, 0.5) == pytest.approx([0.15, 0.6])


def test_lambda_1_is_return_minus_value_and_lambda_0_the_temporal_difference() -> None:
    rewards, values = np.array([1.0, 0.0, 2.0]), np.array([0.5, 1.0, -1.0])
    assert gae(rewards, values, 0.9, 1.0) == pytest.approx(discounted(rewards, 0.9) - values)
    assert gae(rewards, values, 0.9, 0.0) == pytest.approx(rewards + 0.9 * np.array([1.0, -1.0, 0.0]) - values)


def test_returns_by_hand() -> None:
    assert discounted(np.array([1.0, 2.0, 4.0]), 0.5) == pytest.approx([1 + 1 + 1, 2 + 2, 4])


def bi_level_by_definition(episode: Arrays, gamma: float, lam: float, turn_gamma: float, turn_lam: float) -> np.ndarray:
    """Turn by turn: GAE over the turns' last tokens, then GAE inside each turn towards the turn's return."""
    rewards, values, turns = episode
    last = [max(t for t in range(len(turns)) if turns[t] == k) for k in dict.fromkeys(turns.tolist())]
    coarse = gae_by_definition(
        np.array([rewards[e] for e in last]), np.array([values[e] for e in last]), turn_gamma, turn_lam
    )
    found = np.zeros(len(turns))
    for end, advantage in zip(last, coarse, strict=True):
        inside = [t for t in range(len(turns)) if turns[t] == turns[end]]
        own = np.array([rewards[t] for t in inside])
        own[-1] = advantage + values[end]
        found[inside] = gae_by_definition(own, values[inside], gamma, lam)
    return found


@given(episodes(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_bi_level_gae_is_its_definition(
    episode: Arrays, gamma: float, lam: float, turn_gamma: float, turn_lam: float
) -> None:
    ours = bi_level_gae(*episode, gamma, lam, turn_gamma, turn_lam)
    assert ours == pytest.approx(bi_level_by_definition(episode, gamma, lam, turn_gamma, turn_lam), abs=1e-9)


def test_bi_level_gae_by_hand_with_a_turn_whose_reward_is_zero() -> None:
    # Turns (0, 0) and (1, 1); V = 0 except V = .5 at both ends; turn_gamma = .5, all lambdas and gamma 1.
    # A_1 = 1 - .5 = .5, R_1 = 1; A_0 = 0 + .5*.5 - .5 + .5*.5 = 0, R_0 = .5: the turn without reward is a boundary.
    ours = bi_level_gae(
        np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.5, 0.0, 0.5]), np.array([0, 0, 1, 1]), 1.0, 1.0, 0.5, 1.0
    )
    assert ours == pytest.approx([0.5, 0.0, 1.0, 0.5])


@given(episodes())
def test_bi_level_gae_of_one_turn_is_gae(episode: Arrays) -> None:
    rewards, values, turns = episode
    one = bi_level_gae(rewards, values, turns * 0, 0.9, 0.8, 0.7, 0.6)
    assert one == pytest.approx(gae_by_definition(rewards, values, 0.9, 0.8), abs=1e-9)


@given(st.floats(-5, 5), st.lists(st.floats(-5, 5), max_size=6))
def test_placed_rewards_add_up_to_the_reward(total: float, of_turns: list[float]) -> None:
    assert place_rewards(total, np.array([0, 0, 1, 3, 3]), of_turns).sum() == pytest.approx(total, abs=1e-9)


def test_turn_rewards_stand_at_the_end_of_their_turn_and_the_rest_at_the_last_token() -> None:
    assert place_rewards(1.0, np.array([0, 0, 1, 1]), [0.25, 0.5]).tolist() == [0, 0.25, 0, 0.75]
    assert place_rewards(1.0, np.array([0, 0, 1, 1])).tolist() == [0, 0, 0, 1]


def test_whitening_by_hand_is_over_all_tokens_together() -> None:
    first, second = whiten([np.array([1.0, 1.0]), np.array([4.0])])  # mean 2, var 2
    assert first == pytest.approx([-1 / np.sqrt(2)] * 2) and second == pytest.approx([2 / np.sqrt(2)])
    assert whiten([np.array([0.1, 0.1, 0.1])])[0].tolist() == [0, 0, 0]
    assert whiten([]) == []


def test_remax_subtracts_the_greedy_reward() -> None:
    assert remax(np.array([1.0, 0.0]), 0.25).tolist() == [0.75, -0.25]


def test_step_groups_compare_turns_that_began_in_the_same_state() -> None:
    # State a: returns 3, 1, 2 (twice in the second trajectory); b and c occur once.
    found = step_groups([[b"a", b"b"], [b"a", b"a", b"c"]], [np.array([3.0, 9.0]), np.array([1.0, 2.0, 7.0])])
    assert found[0] == pytest.approx([1, 0], abs=1e-5) and found[1] == pytest.approx([-1, 0, 0], abs=1e-5)


def forked() -> list[TrainSample]:
    """Turn 1 and turn 2 both extend turn 0: turn 2 is trained in a second sample."""
    return build("t", [step(0, -1, [1], [2, 3]), step(1, 0, [4], [5]), step(2, 0, [6], [7, 8])])


def test_the_tokens_of_forks_are_one_trajectory_in_the_order_of_turns() -> None:
    samples = forked()
    assert joined(samples, [s.token_ids[s.places] for s in samples]).tolist() == [2, 3, 5, 7, 8]
    back = spread(samples, {"x": np.arange(5.0), "advantages": np.arange(5.0)})
    assert joined(back, [s.columns["x"] for s in back]).tolist() == [0, 1, 2, 3, 4]
    assert joined(back, [s.advantages for s in back]).tolist() == [0, 1, 2, 3, 4]


def with_column(samples: list[TrainSample], **columns: list[float]) -> list[TrainSample]:
    return spread(samples, {name: np.array(values) for name, values in columns.items()})


def test_gae_of_a_batch_sets_advantages_and_the_returns_the_critic_learns() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    samples = with_column(with_rewards(forked(), (2.0, [0.5, 0.5])), values=values)
    done = assign(samples, Algo(advantage="gae", gamma=0.9, lam=0.8))
    expected = gae_by_definition(np.array([0, 0.5, 0.5, 0, 1.0]), np.array(values), 0.9, 0.8)
    assert joined(done, [s.advantages for s in done]) == pytest.approx(expected, abs=1e-6)
    assert joined(done, [s.columns["returns"] for s in done]) == pytest.approx(expected + values, abs=1e-6)
    bi = assign(samples, Algo(advantage="bi_level_gae", gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6))
    episode = (np.array([0, 0.5, 0.5, 0, 1.0]), np.array(values), np.array([0, 0, 1, 2, 2]))
    assert joined(bi, [s.advantages for s in bi]) == pytest.approx(
        bi_level_by_definition(episode, 0.9, 0.8, 0.7, 0.6), abs=1e-6
    )


def test_reinforce_pp_whitens_returns_over_the_tokens_of_the_batch() -> None:
    one = with_rewards([sample("a", [(2, 2)])], (1.0, []))
    other = with_rewards([replace(sample("b", [(2, 1)]), group="g")], (4.0, []))
    done = assign([*one, *other], Algo(advantage="reinforce_pp"))
    assert done[0].advantages.tolist() == pytest.approx([-1 / np.sqrt(2)] * 2)
    assert done[1].advantages[0] == pytest.approx(2 / np.sqrt(2))


def test_distillation_pulls_towards_the_teacher_token_by_token() -> None:
    samples = with_column(forked(), reference=[-1.0, -2.0, -3.0, -4.0, -5.0])
    done = assign(samples, Algo(advantage="distill"))
    sampled = joined(samples, [s.logprobs for s in samples])
    assert joined(done, [s.advantages for s in done]) == pytest.approx(np.arange(-1.0, -6.0, -1.0) - sampled)


def test_whitening_is_off_by_default() -> None:
    samples = forked()
    assert assign(samples, Algo()) == samples
    white = assign([replace(samples[0], advantages=samples[0].advantages + 1), samples[1]], Algo(whiten=True))
    values = np.concatenate([s.advantages for s in white])
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=1e-6)
