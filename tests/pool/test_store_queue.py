"""The pool's state machine: order of the queue, eviction, feedback."""

import math

import pytest

from rlctl.pool.state import Refusal
from rlctl.pool.store import Store
from rlctl.wire.messages import (
    Ack,
    Feedback,
    FeedbackTaken,
    Nack,
    SubmitScores,
)
from rlctl.wire.samples import Score
from tests.pool.make import check_sums, fetch, finish, opened, outcomes, ready_group, rules

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
