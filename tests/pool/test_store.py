"""Every rule of the pool's state machine, one fact each: what comes in."""

import math

import pytest

from rlctl.pool.state import Refusal
from rlctl.pool.store import Store
from rlctl.wire.messages import (
    Ack,
    Busy,
    CompleteTrajectory,
    Done,
    GroupOpened,
    OpenGroup,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import Facts, Score
from tests.pool.make import fetch, finish, opened, outcomes, ready_group, rules, step

# ---------------------------------------------------------------- admission


def test_admission_stops_at_the_limit_and_a_finished_group_frees_its_slot(store: Store) -> None:
    for i in range(4):
        opened(store, f"p{i}", 1)
    assert isinstance(store.apply(OpenGroup("p4", ["p4.0"]), 0), Busy)
    finish(store, "p0.0")
    fetch(store, "L")
    assert isinstance(store.apply(OpenGroup("p4", ["p4.0"]), 0), Busy), "a leased group still counts"
    store.apply(Ack("L", {"p0.0": "trained"}), 0)
    assert isinstance(store.apply(OpenGroup("p4", ["p4.0"]), 0), GroupOpened)


def test_evaluation_groups_need_no_slot_and_leave_the_training_counters_alone(store: Store) -> None:
    for i in range(9):
        (uid,) = opened(store, f"v{i}", 1, channel="val")
        finish(store, uid, reward=None)
    values = store.statistics()
    assert (values["groups_in_flight"], values["train.created"], values["val.created"]) == (0, 0, 9)
    assert outcomes(store) == [(f"v{i}.0", "complete") for i in range(9)]


def test_opening_a_group_again_changes_nothing_even_after_it_ended(store: Store) -> None:
    opened(store, "p", 2)
    opened(store, "p", 2)
    assert store.statistics()["train.created"] == 2
    for uid in ("p.0", "p.1"):
        store.apply(CompleteTrajectory(uid, 1, status="failed"), 0)
    opened(store, "p", 2)
    assert store.statistics()["groups_in_flight"] == 0


def test_the_end_of_a_trajectory_nobody_has_named_may_be_refused(store: Store) -> None:
    with pytest.raises(Refusal, match="no trajectory x"):
        store.apply(CompleteTrajectory("x", 0, status="failed", only_known=True), 0)
    assert not store.statistics().get("train.created")
    (uid,) = opened(store, "p", 1)
    assert store.apply(CompleteTrajectory(uid, 0, status="failed", only_known=True), 0) == Done(accepted=1)
    assert store.apply(CompleteTrajectory(uid, 0, status="failed", only_known=True), 0) == Done(duplicate=1)
    assert outcomes(store) == [(uid, "failed")]


def test_open_steps_are_counted_for_a_gateway_that_was_restarted(store: Store) -> None:
    (uid,) = opened(store, "p", 1)
    assert store.intake.open_steps() == {}
    store.apply(SubmitSteps([step(uid, 0), step(uid, 4)]), 0)
    assert store.intake.open_steps() == {uid: (2, 5)}
    store.apply(CompleteTrajectory(uid, 0, status="failed"), 0)
    assert store.intake.open_steps() == {}


def test_steps_that_are_faster_than_their_group_join_it(store: Store) -> None:
    store.apply(SubmitSteps([step("p.1", prompt_uid="p")]), 0)
    opened(store, "p", 2)
    finish(store, "p.0")
    assert store.statistics()["queue_ready"] == 0
    finish(store, "p.1", prompt_uid="p")
    (group,) = fetch(store, "L").groups
    assert [t.uid for t in group.trajectories] == ["p.1", "p.0"]
    assert (group.env, group.trajectories[0].task) == ("lake", {"ground_truth": "4"})


# ---------------------------------------------------------------- steps


def test_another_step_under_a_taken_index_is_refused_with_its_message_and_changes_nothing(store: Store) -> None:
    opened(store, "p", 1)
    store.apply(SubmitSteps([step("p.0")]), 0)
    before = store.statistics()
    for clash in ([step("p.0", tokens=4)], [step("p.0", 1), step("p.0", 1, version=1)]):
        with pytest.raises(Refusal, match="two gateways serve this trajectory"):
            store.apply(SubmitSteps(clash), 0)
    assert store.statistics() == before
    with pytest.raises(Refusal, match="it has 1 steps here, its end speaks of 0"):
        store.apply(CompleteTrajectory("p.0", 0), 0)
    assert store.apply(CompleteTrajectory("p.0", 1), 0) == Done(accepted=1)


def test_a_step_sent_twice_is_stored_once_and_counted(store: Store) -> None:
    opened(store, "p", 1)
    assert store.apply(SubmitSteps([step("p.0"), step("p.0", 1)]), 0) == Done(accepted=2)
    assert store.apply(SubmitSteps([step("p.0", 1), step("p.0", 2)]), 0) == Done(accepted=1, duplicate=1)
    assert store.statistics()["steps"] == 3


def test_completion_goes_by_count_whatever_the_order_of_arrival(store: Store) -> None:
    opened(store, "p", 1)
    store.apply(CompleteTrajectory("p.0", 3, reward=1.0), 0)
    for index in (2, 0):
        store.apply(SubmitSteps([step("p.0", index)]), 0)
        assert store.statistics()["queue_ready"] == 0
    store.apply(SubmitSteps([step("p.0", 1)]), 0)
    (group,) = fetch(store, "L").groups
    assert [s.step_index for s in group.trajectories[0].steps] == [0, 1, 2]


def test_a_grown_group_that_is_opened_after_all_collects_nobody_else(store: Store) -> None:
    store.apply(SubmitSteps([step("p.0", prompt_uid="p")]), 0.0)
    store.apply(OpenGroup("p", ["p.0"]), 0.0)
    store.apply(SubmitSteps([step("p.1", prompt_uid="p")]), 0.0)
    assert store.statistics()["groups_in_flight"] == 2


def test_steps_of_an_unknown_trajectory_are_kept_as_a_group_of_one(store: Store) -> None:
    store.apply(SubmitSteps([step("outside", prompt_uid="q")]), 0)
    store.apply(CompleteTrajectory("outside", 1, reward=0.5), 0)
    (group,) = fetch(store, "L").groups
    assert (group.prompt_uid, [t.uid for t in group.trajectories]) == ("q", ["outside"])


def test_a_late_step_is_refused_and_cannot_resurrect_its_trajectory(store: Store) -> None:
    ready_group(store, "p", 1)
    assert store.apply(SubmitSteps([step("p.0", 1)]), 0) == Done(refused=1), "complete: nothing more fits"
    fetch(store, "L")
    store.apply(Ack("L", {"p.0": "trained"}), 0)
    assert store.apply(SubmitSteps([step("p.0", 7)]), 0) == Done(refused=1)
    assert store.apply(CompleteTrajectory("p.0", 1), 0) == Done(duplicate=1)
    assert store.statistics()["live_trajectories"] == 0


def test_tombstones_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.pool.ledger.TOMBSTONES", 10)
    for i in range(50):
        store.apply(CompleteTrajectory(f"t{i}", 1, status="failed"), 0)
    assert list(store.state.tombstones) == [f"t{i}" for i in range(40, 50)]


# ---------------------------------------------------------------- readiness, failures, scores


def test_one_unfinished_group_does_not_hold_up_those_behind_it(store: Store) -> None:
    opened(store, "slow", 2)
    ready_group(store, "fast")
    assert [g.prompt_uid for g in fetch(store, "L").groups] == ["fast"]


def test_the_oldest_ready_group_goes_first(store: Store) -> None:
    for name in ("a", "b", "c"):
        opened(store, name, 1)
    for name in ("c", "b", "a"):
        finish(store, f"{name}.0")
    assert [g.prompt_uid for g in fetch(store, "L", 2).groups] == ["a", "b"]


def test_a_group_is_ready_only_when_all_are_scored(store: Store) -> None:
    opened(store, "p", 2)
    finish(store, "p.0")
    finish(store, "p.1", reward=None)
    assert fetch(store, "L").lease == ""
    store.apply(SubmitScores([Score("p.1", 0.25, {"env": 0.25})]), 0)
    (group,) = fetch(store, "L").groups
    assert [(t.reward, t.reward_parts) for t in group.trajectories] == [(1.0, {"env": 1.0}), (0.25, {"env": 0.25})]


def test_a_failed_trajectory_ends_at_once_and_the_group_goes_on_without_it(store: Store) -> None:
    opened(store, "p", 3)
    finish(store, "p.0")
    store.apply(CompleteTrajectory("p.1", 5, status="failed", facts=Facts(error="agent crashed")), 0)
    finish(store, "p.2")
    (group,) = fetch(store, "L").groups
    assert [t.uid for t in group.trajectories] == ["p.0", "p.2"]
    (ended,) = store.take_ended()
    assert (ended.outcome, ended.trajectory.status, ended.trajectory.facts.error) == (
        "failed",
        "failed",
        "agent crashed",
    )


def test_a_group_whose_trajectories_all_failed_ends_by_itself(store: Store) -> None:
    for uid in opened(store, "p", 2):
        store.apply(CompleteTrajectory(uid, 0, status="failed"), 0)
    values = store.statistics()
    assert (values["train.failed"], values["groups_in_flight"], values["train.open"]) == (2, 0, 0)


def test_an_episode_without_a_model_call_is_a_failure_not_an_empty_sample(store: Store) -> None:
    opened(store, "p", 1)
    store.apply(CompleteTrajectory("p.0", 0), 0)
    (ended,) = store.take_ended()
    assert (ended.outcome, ended.trajectory.facts.error) == ("failed", "the agent made no model call")


@pytest.mark.parametrize(
    "score", [Score("p.0", error="judge: timeout"), Score("p.0", math.nan), Score("p.0", math.inf)]
)
def test_a_scoring_error_is_a_failed_sample_with_its_reason(store: Store, score: Score) -> None:
    opened(store, "p", 1)
    finish(store, "p.0", reward=None)
    store.apply(SubmitScores([score]), 0)
    (ended,) = store.take_ended()
    assert ended.outcome == "failed"
    assert ended.trajectory.facts.error == (score.error or f"the reward is {score.reward}")


def test_step_rewards_of_a_white_box_agent_add_up_and_need_no_scoring(store: Store) -> None:
    store.apply(SubmitSteps([step("w", 0, reward=0.25), step("w", 1, reward=1.0)]), 0)
    store.apply(CompleteTrajectory("w", 2), 0)
    (group,) = fetch(store, "L").groups
    assert group.trajectories[0].reward == 1.25


def test_what_was_taken_for_scoring_and_not_scored_is_handed_out_again() -> None:
    store = Store(rules(score_timeout_s=60))
    opened(store, "p", 2)
    for uid in ("p.0", "p.1"):
        finish(store, uid, reward=None)
    assert [t.uid for t in store.scores.take_unscored(1, now=0)] == ["p.0"]
    assert [t.uid for t in store.scores.take_unscored(9, now=30)] == ["p.1"]
    assert [t.uid for t in store.scores.take_unscored(9, now=60)] == ["p.0"]
    store.apply(SubmitScores([Score("p.0", 1.0)]), 61)
    assert store.apply(SubmitScores([Score("p.0", 0.0)]), 62) == Done(duplicate=1)
    assert [t.uid for t in store.scores.take_unscored(9, now=200)] == ["p.1"]
