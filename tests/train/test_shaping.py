import msgspec
import pytest

from rlctl.config.algorithm import Algo
from rlctl.train.objective.shaping import shape, shaped_reward
from rlctl.wire.samples import OUTCOMES, Facts, Group, Trajectory

from .test_samples import step


def trajectory(uid: str, reward: float | None, status: str = "complete", length: int = 3) -> Trajectory:
    return Trajectory(
        uid, "g", "train", [step(0, -1, [1] * length, [2, 3])], status, Facts(success=bool(reward)), reward
    )


def group(*members: Trajectory) -> Group:
    return Group("g", "fake", list(members))


def test_every_trajectory_gets_exactly_one_outcome() -> None:
    groups = [
        group(trajectory("a", 1.0), trajectory("b", 0.0), trajectory("c", 5.0, status="failed"), trajectory("d", None)),
        group(trajectory("e", 1.0), trajectory("f", 1.0)),
        group(trajectory("g", 1.0, length=500), trajectory("h", 0.0)),
    ]
    shaped = shape(groups, Algo(), max_context=100)
    assert shaped.outcomes == {
        "a": "trained", "b": "trained", "c": "failed", "d": "failed", "e": "zero_variance", "f": "zero_variance",
        "g": "overlong", "h": "trained",
    }  # fmt: skip
    assert set(shaped.outcomes.values()) <= set(OUTCOMES)
    assert [sample.uid for sample in shaped.samples] == ["a", "b", "h"]
    assert (shaped.groups, shaped.flat_groups) == (3, 1)


def test_a_failed_trajectory_does_not_move_the_baseline() -> None:
    members = [trajectory("a", 1.0), trajectory("b", 0.0), trajectory("c", 100.0, status="failed")]
    shaped = shape([group(*members)], Algo(advantage="dr_grpo"), max_context=100)
    assert [sample.advantages[-1] for sample in shaped.samples] == pytest.approx([0.5, -0.5])


def test_an_overlong_trajectory_moves_the_baseline_but_is_not_trained() -> None:
    members = [trajectory("a", 1.0), trajectory("b", 0.0, length=500)]
    shaped = shape([group(*members)], Algo(advantage="dr_grpo"), max_context=100)
    assert [(sample.uid, sample.advantages[-1]) for sample in shaped.samples] == [("a", 0.5)]


def test_groups_without_variance_can_be_kept() -> None:
    shaped = shape([group(trajectory("a", 1.0), trajectory("b", 1.0))], Algo(zero_variance="keep"), max_context=100)
    assert shaped.counts() == {"trained": 2}


def test_a_trajectory_whose_steps_are_broken_counts_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    broken = msgspec.structs.replace(trajectory("a", 1.0), steps=[step(3, 1, [1], [2])])
    assert shape([group(broken, trajectory("b", 0.0))], Algo(), 100).outcomes["a"] == "failed"
    assert "step 3 extends step 1" in caplog.text


def test_a_trajectory_without_a_response_token_counts_as_failed() -> None:
    silent = msgspec.structs.replace(trajectory("a", 1.0), steps=[])
    assert shape([group(silent)], Algo(), 100).outcomes == {"a": "failed"}


def turns(uid: str, states: list[int], reward: float, temperature: float = 1.0, **facts: object) -> Trajectory:
    """One call per state; the prompt of each is its state."""
    steps = [
        msgspec.structs.replace(step(i, i - 1, [state], [9, 9]), temperature=temperature)
        for i, state in enumerate(states)
    ]
    return Trajectory(uid, "g", "train", steps, "complete", Facts(**facts), reward)  # type: ignore[arg-type]


def test_remax_takes_the_greedy_trajectory_as_baseline_and_does_not_train_it() -> None:
    members = [turns("greedy", [1], 0.25, temperature=0.0), turns("a", [1], 1.0), turns("b", [1], 0.0)]
    shaped = shape([group(*members)], Algo(advantage="remax"), 100)
    assert [(s.uid, s.advantages[-1]) for s in shaped.samples] == [("a", 0.75), ("b", -0.25)]
    assert shaped.counts() == {"trained": 3}


def test_remax_without_a_greedy_trajectory_fails_the_group(caplog: pytest.LogCaptureFixture) -> None:
    shaped = shape([group(turns("a", [1], 1.0), turns("b", [1], 0.0))], Algo(advantage="remax"), 100)
    assert shaped.counts() == {"failed": 2} and "no greedy trajectory" in caplog.text


def test_gigpo_adds_the_advantage_among_turns_that_began_in_the_same_state() -> None:
    # Rewards 1 and 0: episode advantages +-1/sqrt(2). State 5 is in both, with returns 1 and 0: the same again.
    members = [turns("a", [1, 5], 1.0), turns("b", [2, 5], 0.0)]
    shaped = shape([group(*members)], Algo(advantage="gigpo"), 100)
    half = 0.5 / (0.5**0.5)
    assert shaped.samples[0].advantages == pytest.approx([half] * 2 + [2 * half] * 2, 1e-4)
    assert shaped.samples[1].advantages[-1] == pytest.approx(-2 * half, 1e-4)
    light = shape([group(*members)], Algo(advantage="gigpo", step_weight=0.5), 100)
    assert light.samples[0].advantages[-1] == pytest.approx(1.5 * half, 1e-4)


def test_gigpo_finds_a_signal_inside_a_group_of_equal_rewards() -> None:
    # Both end with 1, but from state 5 one still had all of it to come, the other only 1 - 0.75.
    one, other = turns("a", [5, 1], 1.0, turn_rewards=[0.75, 0.25]), turns("b", [2, 5], 1.0, turn_rewards=[0.75, 0.25])
    assert shape([group(one, other)], Algo(advantage="gigpo"), 100).counts() == {"zero_variance": 2}
    shaped = shape([group(one, other)], Algo(advantage="gigpo", turn_rewards=True), 100)
    assert shaped.counts() == {"trained": 2}


@pytest.mark.parametrize(("own", "expected"), [(False, [0, 0.25, 0, 0.75]), (True, [0, 0.5, 0, 0.5])])
def test_token_rewards_are_the_agents_own_or_the_environments(own: bool, expected: list[float]) -> None:
    one = turns("a", [1, 2], 1.0, turn_rewards=[0.25, 0.5])
    if own:
        one = msgspec.structs.replace(one, steps=[msgspec.structs.replace(one.steps[0], reward=0.5), one.steps[1]])
    (sample,) = shape([group(one)], Algo(advantage="reinforce_pp", turn_rewards=True), 100).samples
    assert sample.columns["rewards"].tolist() == expected


def test_the_baseline_form_of_reinforce_pp_centres_in_the_group_first() -> None:
    shaped = shape([group(turns("a", [1], 1.0), turns("b", [1], 0.0))], Algo(advantage="reinforce_pp_baseline"), 100)
    assert [s.columns["rewards"][-1] for s in shaped.samples] == [0.5, -0.5]


def spoken(uid: str, reward: float, lengths: list[int], finish: str = "stop") -> Trajectory:
    steps = [msgspec.structs.replace(step(i, i - 1, [1], [7] * n), finish_reason=finish) for i, n in enumerate(lengths)]
    return Trajectory(uid, "g", "train", steps, "complete", Facts(), reward)


def test_the_overlong_penalty_falls_linearly_over_the_buffer() -> None:
    algo = Algo(overlong_buffer=4)
    found = [shaped_reward(spoken("a", 1.0, [2, n]), algo, max_response=10) for n in (6, 7, 10)]
    assert found == pytest.approx([1.0, 0.75, 0.0])


def test_length_penalty_and_binary_reward_by_hand() -> None:
    assert shaped_reward(spoken("a", 1.0, [30, 20]), Algo(length_penalty=2.0), 100) == pytest.approx(1 - 2 * 0.05)
    binary = Algo(binary_reward=0.5, length_penalty=2.0)
    assert shaped_reward(spoken("a", 0.6, [50]), binary, 100) == pytest.approx(0.9)
    assert shaped_reward(spoken("a", 0.4, [50]), binary, 100) == pytest.approx(-0.1)


def test_penalties_give_a_signal_and_the_metrics_keep_the_plain_reward() -> None:
    shaped = shape([group(spoken("a", 1.0, [10]), spoken("b", 1.0, [20]))], Algo(length_penalty=1.0), 100, 100)
    assert shaped.counts() == {"trained": 2} and shaped.rewards == [1.0, 1.0]
    assert shaped.samples[0].advantages[-1] > 0 > shaped.samples[1].advantages[-1]


def test_cut_off_answers_move_the_baseline_but_are_not_trained_on() -> None:
    members = [spoken("a", 1.0, [5]), spoken("b", 0.0, [5], finish="length")]
    shaped = shape([group(*members)], Algo(advantage="dr_grpo", drop_truncated=True), 100)
    assert shaped.outcomes == {"a": "trained", "b": "overlong"}
    assert shaped.samples[0].advantages[-1] == 0.5
    assert shape([group(*members)], Algo(), 100).counts() == {"trained": 2}


def test_the_uncertainty_filter_keeps_the_groups_whose_rewards_differ_most() -> None:
    groups = [group(trajectory(f"{n}a", spread), trajectory(f"{n}b", 0.0)) for n, spread in enumerate((1, 4, 2, 3, 0))]
    shaped = shape(groups, Algo(keep_uncertain=0.5), 100)
    assert [sample.uid for sample in shaped.samples] == ["1a", "1b", "3a", "3b"]
    assert shaped.counts() == {"trained": 4, "filtered": 4, "zero_variance": 2}
    assert shape(groups, Algo(), 100).counts() == {"trained": 8, "zero_variance": 2}
