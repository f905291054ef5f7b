import msgspec
import pytest

from rlctl.config.learning import Algo
from rlctl.train.shaping import shape
from rlctl.wire.messages import OUTCOMES, Facts, Group, Trajectory

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
