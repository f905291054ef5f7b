"""The pool's state machine: deadlines, leases, staleness, the end of a run."""

import msgspec
import pytest

from rlctl.pool.state import Refusal
from rlctl.pool.store import Store
from rlctl.wire.messages import (
    Abandon,
    Ack,
    Busy,
    Done,
    EndRun,
    FetchBatch,
    GroupOpened,
    Hold,
    Nack,
    OpenGroup,
    SetPolicyVersion,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import Score
from tests.pool.make import check_sums, fetch, finish, opened, ready_group, rules, step

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
    assert store.ledger.slots == 4


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
    assert (store.ledger.slots, store.apply(Hold("one", ["a.0", "a.1"]), 1.0).accepted) == (0, 1)
    assert store.apply(Hold("one", ["a.0", "a.1"]), 2.0).accepted == 1, "sent again"
    assert store.ledger.slots == 1
    store.advance(1e6)
    assert (store.statistics()["groups_held"], store.ledger.ready) == (1, 1)
    ready_group(store, "c", now=1e6)
    store.apply(Nack(""), 1e6)
    assert (store.ledger.slots, store.statistics()["groups_in_flight"]) == (-1, 3), (
        "nothing opens until one of them has ended"
    )
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
    (trajectory,) = store.scores.take_unscored(1, now=0, steps=False)
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
