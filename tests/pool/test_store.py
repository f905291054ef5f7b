"""Every rule of the pool's state machine, one fact each."""

import math

import msgspec
import pytest

from rlctl.pool.state import Refusal
from rlctl.pool.store import Store
from rlctl.wire.messages import (
    Abandon,
    Ack,
    Busy,
    CompleteTrajectory,
    Done,
    EndRun,
    Feedback,
    FeedbackTaken,
    FetchBatch,
    GroupOpened,
    Hold,
    Nack,
    OpenGroup,
    SetPolicyVersion,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import Facts, Score
from tests.pool.make import check_sums, fetch, finish, opened, ready_group, rules, step


@pytest.fixture
def store() -> Store:
    return Store(rules())


def outcomes(store: Store) -> list[tuple[str, str]]:
    return [(one.trajectory.uid, one.outcome) for one in store.take_ended()]


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
    assert store.open_steps() == {}
    store.apply(SubmitSteps([step(uid, 0), step(uid, 4)]), 0)
    assert store.open_steps() == {uid: (2, 5)}
    store.apply(CompleteTrajectory(uid, 0, status="failed"), 0)
    assert store.open_steps() == {}


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
    assert [t.uid for t in store.take_unscored(1, now=0)] == ["p.0"]
    assert [t.uid for t in store.take_unscored(9, now=30)] == ["p.1"]
    assert [t.uid for t in store.take_unscored(9, now=60)] == ["p.0"]
    store.apply(SubmitScores([Score("p.0", 1.0)]), 61)
    assert store.apply(SubmitScores([Score("p.0", 0.0)]), 62) == Done(duplicate=1)
    assert [t.uid for t in store.take_unscored(9, now=200)] == ["p.1"]


# ---------------------------------------------------------------- deadlines


def test_at_the_deadline_the_incomplete_expire_and_enough_complete_ones_are_handed_out() -> None:
    store = Store(rules(min_group_size=2, group_timeout_s=100))
    opened(store, "p", 4)
    finish(store, "p.0")
    finish(store, "p.3")
    store.advance(99)
    assert store.statistics()["queue_ready"] == 0
    store.advance(100)
    assert [t.uid for t in fetch(store, "L", now=100).groups[0].trajectories] == ["p.0", "p.3"]
    assert store.statistics()["train.expired"] == 2


@pytest.mark.parametrize("least", [0, 3])
def test_a_group_below_min_group_size_expires_whole(least: int) -> None:
    store = Store(rules(min_group_size=least, group_timeout_s=100))
    opened(store, "p", 4)
    finish(store, "p.0")
    finish(store, "p.3")
    store.advance(100)
    assert store.statistics()["train.expired"] == 4
    assert store.slots == 4


def test_a_complete_group_that_waits_for_scores_outlives_its_deadline() -> None:
    store = Store(rules(group_timeout_s=100))
    opened(store, "p", 1)
    finish(store, "p.0", reward=None)
    store.advance(500)
    store.apply(SubmitScores([Score("p.0", 1.0)]), 500)
    assert store.statistics()["queue_ready"] == 1


# ---------------------------------------------------------------- leases


def test_a_batch_is_leased_whole_or_not_at_all(store: Store) -> None:
    ready_group(store, "a")
    assert fetch(store, "L", 2).groups == []
    assert fetch(store, "L", 1).lease == "L"


def test_the_same_lease_name_again_gives_the_same_groups(store: Store) -> None:
    ready_group(store, "a")
    ready_group(store, "b")
    assert fetch(store, "L") == fetch(store, "L")
    assert [g.prompt_uid for g in fetch(store, "M").groups] == ["b"]


def test_a_lease_that_is_not_acknowledged_in_time_goes_back_to_its_place(store: Store) -> None:
    ready_group(store, "a")
    ready_group(store, "b")
    fetch(store, "L", lease_s=50)
    store.advance(49)
    assert store.statistics()["queue_ready"] == 1
    store.advance(50)
    assert [g.prompt_uid for g in fetch(store, "M", 2, now=50).groups] == ["a", "b"]
    assert store.statistics()["leases_expired"] == 1


def test_an_ack_counts_once_also_after_its_lease_ran_out(store: Store) -> None:
    ready_group(store, "a")
    fetch(store, "L", lease_s=50)
    ack = Ack("L", {"a.0": "trained", "a.1": "trained"})
    assert store.apply(ack, 60) == Done(accepted=2)
    assert store.apply(ack, 61) == Done(duplicate=2)
    assert store.statistics()["train.trained"] == 2


def test_an_ack_must_name_every_trajectory_and_a_known_outcome(store: Store) -> None:
    ready_group(store, "a")
    fetch(store, "L")
    with pytest.raises(Refusal, match=r"leaves out 1 trajectories, e\.g\. a\.1"):
        store.apply(Ack("L", {"a.0": "trained"}), 0)
    with pytest.raises(Refusal, match="eaten: an outcome is one of trained, stale"):
        store.apply(Ack("L", {"a.0": "eaten", "a.1": "trained"}), 0)
    assert store.statistics()["train.open"] == 2


def test_an_ack_cannot_end_what_is_not_complete(store: Store) -> None:
    opened(store, "p", 1)
    assert store.apply(Ack("L", {"p.0": "trained", "nobody": "trained"}), 0) == Done(refused=2)


def test_nack_gives_back_one_lease_or_all(store: Store) -> None:
    for name in ("a", "b", "c"):
        ready_group(store, name)
        fetch(store, name)
    assert store.apply(Nack("b"), 0) == Done(accepted=1)
    assert store.apply(Nack("b"), 0) == Done(duplicate=1)
    assert store.apply(Nack(""), 0) == Done(accepted=2)
    assert [g.prompt_uid for g in fetch(store, "L", 3).groups] == ["a", "b", "c"]


def test_what_is_held_has_no_time_out_and_no_place_in_admission() -> None:
    store = Store(rules(max_in_flight=2, lease_timeout_s=10))
    for name in "ab":
        ready_group(store, name)
    fetch(store, "one")
    assert (store.slots, store.apply(Hold("one", ["a.0", "a.1"]), 1.0).accepted) == (0, 1)
    assert store.apply(Hold("one", ["a.0", "a.1"]), 2.0).accepted == 1, "sent again"
    assert store.slots == 1
    store.advance(1e6)
    assert (store.statistics()["groups_held"], store.ledger.ready) == (1, 1)
    ready_group(store, "c", now=1e6)
    store.apply(Nack(""), 1e6)
    assert (store.slots, store.statistics()["groups_in_flight"]) == (-1, 3), "nothing opens until one of them has ended"
    assert [g.prompt_uid for g in fetch(store, "two", 2, 1e6).groups] == ["a", "b"], "back in its old place"
    store.apply(Hold("two", ["a.0", "a.1", "b.0", "b.1"]), 1e6)
    assert store.apply(Ack("two", dict.fromkeys(["a.0", "a.1", "b.0", "b.1"], "trained")), 1e6).accepted == 4
    assert (store.statistics()["groups_in_flight"], store.statistics()["leases"]) == (1, 0)


def test_a_lease_that_ran_out_before_it_was_held_is_taken_again() -> None:
    store = Store(rules(lease_timeout_s=10))
    ready_group(store, "a")
    fetch(store, "one")
    store.advance(20.0)
    assert store.ledger.ready == 1
    store.apply(Hold("one", ["a.0", "a.1"]), 20.0)
    assert (store.ledger.ready, store.statistics()["groups_on_lease"]) == (0, 1)
    assert fetch(store, "two", now=21.0).lease == "", "it is not learned from twice"


def test_hold_leaves_the_groups_of_other_leases_alone(store: Store) -> None:
    for name in "ab":
        ready_group(store, name)
    fetch(store, "one")
    fetch(store, "two")
    uids = ["a.0", "a.1", "b.0", "b.1"]
    assert store.apply(Hold("one", uids), 0.0).accepted == 1
    assert store.statistics()["groups_held"] == 1
    with pytest.raises(Refusal, match="needs the name of a lease"):
        store.apply(Hold("", uids), 0.0)


def test_a_channel_that_is_not_trained_cannot_be_fetched(store: Store) -> None:
    with pytest.raises(Refusal, match="'val' is not trained"):
        store.apply(FetchBatch(1, channel="val", lease="L"), 0)


# ---------------------------------------------------------------- staleness


def test_groups_with_a_token_older_than_the_bound_leave_as_stale() -> None:
    store = Store(rules(max_staleness=1))
    ready_group(store, "old", 2, version=0)
    ready_group(store, "new", 2, version=1)
    store.apply(SetPolicyVersion(1), 0)
    assert store.statistics()["queue_ready"] == 2
    store.apply(SetPolicyVersion(2), 0)
    assert store.statistics()["train.stale"] == 2
    assert fetch(store, "L").groups[0].prompt_uid == "new"


def test_the_oldest_token_of_any_step_decides_also_on_arrival() -> None:
    store = Store(rules(max_staleness=1))
    store.apply(SetPolicyVersion(3), 0)
    opened(store, "p", 2)
    mixed = step("p.0", version=3)
    mixed = msgspec.structs.replace(mixed, versions=[(1, 1), (3, 2)])
    store.apply(SubmitSteps([mixed]), 0)
    assert store.statistics()["train.stale"] == 2, "the whole group ends: 1 < 3 - 1"
    assert store.apply(SubmitSteps([step("p.1", version=3)]), 0) == Done(refused=1)


def test_a_leased_group_is_the_trainers_and_goes_stale_only_when_given_back() -> None:
    store = Store(rules(max_staleness=0))
    ready_group(store, "p")
    fetch(store, "L")
    store.apply(SetPolicyVersion(1), 0)
    assert store.statistics()["train.stale"] == 0
    store.apply(Nack("L"), 0)
    assert store.statistics()["train.stale"] == 2
    check_sums(store)


def test_a_scorer_that_needs_no_text_gets_no_steps(store: Store) -> None:
    opened(store, "p", 1)
    finish(store, "p.0", reward=None)
    (trajectory,) = store.take_unscored(1, now=0, steps=False)
    assert (trajectory.steps, trajectory.facts.env_reward, trajectory.status) == ([], 1.0, "complete")


def test_an_owner_that_begins_anew_gives_up_its_unfinished_groups_and_frees_their_slots() -> None:
    store = Store(rules())
    for prompt, owner in (("mine", "a"), ("done", "a"), ("other", "b")):
        store.apply(OpenGroup(prompt, [f"{prompt}.0", f"{prompt}.1"], owner=owner), 0.0)
    finish(store, "mine.0")
    finish(store, "done.0")
    finish(store, "done.1")
    assert store.apply(Abandon("a"), 1.0) == Done(accepted=2)
    values = store.statistics()
    assert (values["train.expired"], values["train.open"], values["groups_in_flight"]) == (2, 4, 2)
    assert [group.prompt_uid for group in fetch(store, "L").groups] == ["done"]
    assert store.apply(Abandon("a"), 1.0) == Done(), "sent again"
    assert store.apply(Abandon(""), 1.0) == Done(), "groups that nobody owns stay"
    check_sums(store)


def test_the_end_of_the_run_closes_the_books_of_the_training_channel() -> None:
    store = Store(rules())
    ready_group(store, "ready")
    ready_group(store, "leased")
    fetch(store, "L")
    opened(store, "playing", 2)
    opened(store, "measured", 1, channel="val")
    store.take_ended()
    assert store.apply(EndRun(), 1.0) == Done(accepted=6)
    values = store.statistics()
    assert (values["train.created"], values["train.expired"], values["train.open"]) == (6, 6, 0)
    assert (values["val.open"], values["leases"], values["groups_in_flight"]) == (1, 0, 0)
    assert {one.outcome for one in store.take_ended()} == {"expired"}
    assert store.apply(EndRun(), 1.0) == Done(), "sent again"
    check_sums(store)


def test_after_the_end_nothing_begins_until_a_version_is_announced_again() -> None:
    store = Store(rules())
    store.apply(EndRun(), 0.0)
    assert isinstance(store.apply(OpenGroup("late", ["late.0"]), 1.0), Busy)
    assert store.apply(SubmitSteps([step("nobody")]), 1.0) == Done(refused=1)
    assert isinstance(store.apply(OpenGroup("val", ["val.0"], channel="val"), 1.0), GroupOpened)
    assert store.statistics()["train.created"] == 0
    store.apply(SetPolicyVersion(3), 2.0)
    assert isinstance(store.apply(OpenGroup("late", ["late.0"]), 2.0), GroupOpened)


# ---------------------------------------------------------------- order and eviction


def queue(**changes: object) -> Store:
    """Four ready groups, opened a, b, c, d, whose oldest tokens are of versions 1, 0, 2, 1."""
    store = Store(rules(max_staleness=9, **changes))
    for name, version in (("a", 1), ("b", 0), ("c", 2), ("d", 1)):
        ready_group(store, name, version=version)
    return store


def fetched(store: Store) -> str:
    ready = store.ledger.ready
    return "".join(group.prompt_uid for group in fetch(store, "all", ready).groups)


@pytest.mark.parametrize(("order", "names"), [("fifo", "abcd"), ("freshest", "cadb")])
def test_the_order_of_the_queue(order: str, names: str) -> None:
    assert fetched(queue(order=order)) == names


@pytest.mark.parametrize(("evict", "kept"), [("oldest", "cd"), ("stalest", "cd"), ("newest", "ab")])
def test_a_full_queue_gives_up_a_group_by_the_named_policy(evict: str, kept: str) -> None:
    store = queue(max_queue_size=2, evict=evict)
    assert fetched(store) == kept
    values = store.statistics()
    assert (values["train.evicted"], values["train.open"], values["queue_limit"]) == (4, 4, 2)
    check_sums(store)


def test_stalest_is_by_policy_and_not_by_age() -> None:
    store = Store(rules(max_staleness=9, max_queue_size=1, evict="stalest"))
    ready_group(store, "fresh", version=5)
    ready_group(store, "stale", version=1)
    assert outcomes(store) == [("stale.0", "evicted"), ("stale.1", "evicted")]


def test_what_is_on_lease_is_not_evicted_and_returns_into_a_queue_that_may_be_full() -> None:
    store = Store(rules(max_queue_size=1, evict="oldest"))
    ready_group(store, "a")
    fetch(store, "L")
    ready_group(store, "b")
    assert store.statistics()["train.evicted"] == 0
    store.apply(Nack("L"), 1.0)
    assert outcomes(store) == [("a.0", "evicted"), ("a.1", "evicted")]


def test_a_deadline_that_makes_a_group_ready_and_evicts_it_ends_each_trajectory_once() -> None:
    store = Store(rules(max_queue_size=1, evict="newest", min_group_size=1, group_timeout_s=10))
    ready_group(store, "first")
    late, done = opened(store, "second", 2)
    finish(store, done)
    store.advance(11.0)
    assert outcomes(store) == [(late, "expired"), (done, "evicted")]
    check_sums(store)


def test_tokens_and_fetches_are_counted() -> None:
    store = queue()
    fetched(store)
    values = store.statistics()
    assert (values["prompt_tokens"], values["response_tokens"]) == (8 * 5, 8 * 3)
    assert (values["fetches"], values["groups_leased"], values["groups_opened"]) == (1, 4, 4)


# ---------------------------------------------------------------- feedback


def test_feedback_changes_the_reward_of_what_is_not_trained_yet() -> None:
    store = Store(rules(feedback_weight=0.5))
    first, _ = ready_group(store, "p")
    assert store.apply(Feedback(first, 2.0), 1.0) == FeedbackTaken(rescored=True)
    assert store.apply(Feedback(first, -1.0, step_index=0), 1.0) == FeedbackTaken(rescored=True)
    (group,) = fetch(store, "L").groups
    judged, other = group.trajectories
    assert (judged.reward, judged.reward_parts["feedback"], judged.step_rewards) == (1.0 + 0.5 * 1.0, 1.0, [-0.5])
    assert (other.reward, other.step_rewards) == (1.0, [])
    assert [note.number for note in store.take_notes()] == [1, 2]


def test_feedback_before_the_score_waits_for_it(store: Store) -> None:
    (uid,) = opened(store, "p", 1)
    finish(store, uid, reward=None)
    assert store.apply(Feedback(uid, 1.0), 0.0) == FeedbackTaken(rescored=True)
    store.apply(SubmitScores([Score(uid, 3.0)]), 0.0)
    assert fetch(store, "L").groups[0].trajectories[0].reward == 4.0


def test_feedback_on_a_lease_counts_only_if_the_group_comes_back(store: Store) -> None:
    uid, _ = ready_group(store, "p")
    fetch(store, "L")
    assert store.apply(Feedback(uid, 1.0), 0.0) == FeedbackTaken(rescored=False)
    assert fetch(store, "L").groups[0].trajectories[0].reward == 1.0, "what the trainer has does not change"
    store.apply(Nack("L"), 0.0)
    assert fetch(store, "M").groups[0].trajectories[0].reward == 2.0


def test_feedback_on_an_ended_trajectory_is_kept_and_counts_once(store: Store) -> None:
    uid, other = ready_group(store, "p")
    fetch(store, "L")
    store.apply(Ack("L", {uid: "trained", other: "trained"}), 0.0)
    assert store.apply(Feedback(uid, 1.0, text="nice", uid="k"), 0.0) == FeedbackTaken()
    assert store.apply(Feedback(uid, 1.0, text="nice", uid="k"), 0.0) == FeedbackTaken(duplicate=True)
    (note,) = store.take_notes()
    assert (note.feedback.text, note.rescored) == ("nice", False)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Feedback("nobody", 1.0), "no trajectory 'nobody'"),
        (Feedback("p.0", math.nan), "the value is nan"),
        (Feedback("p.0", 1.0, step_index=7), "no step 7"),
    ],
)
def test_feedback_that_means_nothing_is_refused(store: Store, given: Feedback, reason: str) -> None:
    ready_group(store, "p")
    with pytest.raises(Refusal, match=reason):
        store.apply(given, 0.0)
    assert store.statistics()["feedback"] == 0
