"""Random operations: nothing lost, nothing twice, sums match, and a replay gives the same state."""

from dataclasses import asdict

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rlctl.pool.state import Refusal, State
from rlctl.pool.store import Event, Store
from rlctl.wire.messages import (
    Abandon,
    Ack,
    CompleteTrajectory,
    EndRun,
    Feedback,
    FetchBatch,
    Hold,
    Nack,
    OpenGroup,
    SetPolicyVersion,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import OUTCOMES, Score
from tests.pool.make import check_sums, rules, step

RULES = rules(max_in_flight=3, max_staleness=1, min_group_size=2, group_timeout_s=40, lease_timeout_s=20)
BOUNDED = rules(**{**asdict(RULES), "max_in_flight": 6, "max_queue_size": 2, "evict": "stalest", "order": "freshest"})
UIDS = [f"p{p}.{i}" for p in range(6) for i in range(3)]
uid = st.sampled_from(UIDS)


class PoolMachine(RuleBasedStateMachine):
    """The store under random traffic, beside a log of what went in and what was told about it."""

    obeyed = RULES

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(self.obeyed)
        self.now = 0.0
        self.events: list[tuple[Event, float]] = []
        self.ended: dict[str, str] = {}
        self.leased: dict[str, set[str]] = {}
        self.created: set[str] = set()

    def apply(self, event: Event):
        self.events.append((event, self.now))
        try:
            return self.store.apply(event, self.now)
        except Refusal:
            return None
        finally:
            self.created |= set(self.store.state.trajectories)
            for one in self.store.take_ended():
                assert one.trajectory.uid not in self.ended, "ended twice"
                self.ended[one.trajectory.uid] = one.outcome
                self.created.add(one.trajectory.uid)

    @rule(seconds=st.sampled_from([0.0, 1.0, 19.0, 45.0]), tick=st.booleans())
    def time_passes(self, seconds: float, tick: bool) -> None:
        self.now += seconds
        if tick:
            self.store.advance(self.now)

    @rule(prompt=st.integers(0, 5), size=st.integers(1, 3), channel=st.sampled_from(["train", "train", "val"]))
    def open_group(self, prompt: int, size: int, channel: str) -> None:
        before = self.store.ledger.in_flight
        self.apply(OpenGroup(f"p{prompt}", [f"p{prompt}.{i}" for i in range(size)], channel=channel, owner="rollout"))
        assert self.store.ledger.in_flight <= max(before, self.obeyed.max_in_flight)

    @rule(items=st.lists(st.tuples(uid, st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=6))
    def submit(self, items: list[tuple[str, int, int]]) -> None:
        steps = [step(u, i, v, prompt_uid=u.split(".")[0]) for u, i, v in items]
        held = {(t.uid, i): one for t in self.store.state.trajectories.values() for i, one in t.steps.items()}
        clash = any(held.setdefault((one.trajectory_uid, one.step_index), one) != one for one in steps)
        done = self.apply(SubmitSteps(steps))
        if done is None:
            assert clash, "only another step under a taken index is refused"
        else:
            assert done.accepted + done.duplicate + done.refused == len(steps)

    @rule(uid=uid, steps=st.integers(0, 3), status=st.sampled_from(["complete", "complete", "failed"]))
    def complete(self, uid: str, steps: int, status: str) -> None:
        self.apply(CompleteTrajectory(uid, steps, status=status, prompt_uid=uid.split(".")[0]))

    @rule(prompt=st.integers(0, 5), version=st.integers(0, 4))
    def play_a_whole_group(self, prompt: int, version: int) -> None:
        for i in range(3):
            one = f"p{prompt}.{i}"
            self.apply(SubmitSteps([step(one, 0, version, prompt_uid=f"p{prompt}")]))
            self.apply(CompleteTrajectory(one, 1, reward=float(i)))

    @rule(limit=st.integers(1, 4), error=st.sampled_from(["", "", "boom"]))
    def score(self, limit: int, error: str) -> None:
        taken = self.store.scores.take_unscored(limit, self.now)
        assert all(t.reward is None and t.status == "complete" for t in taken)
        self.apply(SubmitScores([Score(t.uid, 1.0, error=error) for t in taken]))

    @rule(groups=st.integers(1, 2))
    def fetch(self, groups: int) -> None:
        name = f"L{len(self.events)}"
        batch = self.apply(FetchBatch(groups, lease=name))
        if not batch.lease:
            return
        uids = [t.uid for g in batch.groups for t in g.trajectories]
        assert len(batch.groups) == groups
        for group in self.store.state.groups.values():
            assert group.lease == name or not set(group.members) & set(uids), "handed out in two leases at once"
        for one in uids:
            assert one not in self.ended, "an ended sample was handed out"
        assert all(t.reward is not None and t.status == "complete" for g in batch.groups for t in g.trajectories)
        self.leased[name] = set(uids)

    @rule(outcome=st.sampled_from(OUTCOMES), data=st.data())
    def ack(self, outcome: str, data: st.DataObject) -> None:
        """Also of leases that ran out, were given back, or were acknowledged before."""
        if self.leased:
            name = data.draw(st.sampled_from(sorted(self.leased)))
            before = set(self.ended)
            done = self.apply(Ack(name, dict.fromkeys(self.leased[name], outcome)))
            assert done.accepted + done.duplicate == len(self.leased[name])
            assert self.leased[name] <= set(self.ended)
            assert done.accepted <= len(set(self.ended) - before)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Also of leases that ran out, were given back, or were acknowledged before."""
        if self.leased:
            name = data.draw(st.sampled_from(sorted(self.leased)))
            held = self.apply(Hold(name, sorted(self.leased[name])))
            if held and held.accepted:
                self.now += 1000.0
                self.store.advance(self.now)
                assert name in self.store.state.leases, "what is held does not run out"

    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        self.apply(Nack(data.draw(st.sampled_from(["", *sorted(self.leased)]))))

    @rule(version=st.integers(0, 4))
    def publish(self, version: int) -> None:
        self.apply(SetPolicyVersion(version))

    @rule(uid=uid, value=st.sampled_from([-1.0, 0.5]), key=st.sampled_from(["", "k1", "k2"]), index=st.integers(-1, 1))
    def somebody_judges(self, uid: str, value: float, key: str, index: int) -> None:
        self.apply(Feedback(uid, value, index, uid=key))

    @rule()
    def rollout_begins_anew(self) -> None:
        self.apply(Abandon("rollout"))

    @rule()
    def the_trainer_finishes(self) -> None:
        """Everything in the training channel has an end, and nothing begins there before a version is announced."""
        self.apply(EndRun())
        assert self.store.statistics()["train.open"] == 0
        assert self.store.ledger.slots == 0

    @rule()
    def restart_from_a_snapshot(self) -> None:
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.store.state), type=State)
        again = Store(self.obeyed, state)
        mine, theirs = self.store.ledger, again.ledger
        for name in ("ready", "in_flight", "resident_bytes", "resident_steps"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert len(mine.unscored) == len(theirs.unscored)
        assert self.store.statistics() == again.statistics()
        self.store = again

    @invariant()
    def sums_match(self) -> None:
        check_sums(self.store)
        for one in self.store.take_ended():
            assert one.trajectory.uid not in self.ended
            self.ended[one.trajectory.uid] = one.outcome
        assert self.created == set(self.ended) | set(self.store.state.trajectories), "a sample was lost"

    @invariant()
    def admission_counts_what_is_neither_held_nor_ended(self) -> None:
        groups = [g for g in self.store.state.groups.values() if g.channel == "train"]
        assert self.store.ledger.in_flight == sum(not g.held for g in groups)
        assert all(g.lease for g in groups if g.held)

    @invariant()
    def the_queue_holds_exactly_the_ready_groups(self) -> None:
        ready = [
            g
            for g in self.store.state.groups.values()
            if g.channel == "train" and not g.lease and all(g.members.values())
        ]
        assert self.store.ledger.ready == len(ready)
        assert not self.obeyed.max_queue_size or len(ready) <= self.obeyed.max_queue_size
        assert all(g.unsettled == list(g.members.values()).count(False) for g in self.store.state.groups.values())

    def teardown(self) -> None:
        """Replaying the events, without the ticks and restarts between them, gives the same state."""
        again = Store(self.obeyed)
        for event, now in self.events:
            try:
                again.apply(event, now)
            except Refusal:
                continue
        self.store.advance(self.now)
        again.advance(self.now)
        assert again.state == self.store.state


class BoundedPoolMachine(PoolMachine):
    """The same with a bounded queue."""

    obeyed = BOUNDED


BoundedPoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBoundedPool = BoundedPoolMachine.TestCase
PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
