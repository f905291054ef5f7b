"""The pool as a pure state machine: `reply = store.apply(request, now)`; no clock, no I/O.

    OpenGroup ---------> admission (at most `max_in_flight` training groups that have not ended)
    SubmitSteps -------> by (trajectory, step_index), in any order; unknown trajectories begin a group of their own;
                         the same Step again is a repeat, another one under its index is refused
    CompleteTrajectory > complete once `num_steps` steps are here; failed ones end at once and are never handed out
    SubmitScores ------> settled; a group whose members are all settled is ready
    FetchBatch --------> lease of ready groups in their order;  Ack: outcomes;  Nack or time-out: back to their place
    Hold --------------> learned, not durable yet: no time-out, no place in admission; Ack or Nack follows
    SetPolicyVersion --> groups with too old a token end as `stale`
    Abandon -----------> unfinished groups of an owner that begins anew, as at their deadline
    (anything) --------> ready groups beyond `max_queue_size` end as `evicted`
    EndRun ------------> every live training trajectory ends as `expired`; none begins until SetPolicyVersion

Accounting: in every channel, at any moment, `created` equals the sum over outcomes plus the live trajectories.
What only time does (deadlines, leases) happens in `advance`, which `apply` calls first: so replaying the same requests
with the same times gives the same state, whether or not the clock ticked in between.
Channels other than `train` (evaluation) have no admission, scoring, staleness or leases: complete is their end.
"""

import math
from collections.abc import Callable
from typing import Any

from rlctl.pool import numbers
from rlctl.pool.ledger import TWO_GATEWAYS, Ledger
from rlctl.pool.state import Lease, LiveGroup, LiveTrajectory, Refusal, Rules, State
from rlctl.wire.messages import (
    Abandon,
    Ack,
    Batch,
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
    Noted,
    OpenGroup,
    Reply,
    SetPolicyVersion,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import (
    OUTCOMES,
    TRAIN,
    Ended,
    Group,
    Score,
    Step,
    Trajectory,
)

Event = (
    OpenGroup
    | Abandon
    | SubmitSteps
    | CompleteTrajectory
    | SubmitScores
    | FetchBatch
    | Ack
    | Nack
    | Hold
    | SetPolicyVersion
    | EndRun
    | Feedback
)
"""The requests that change state."""


class Store:
    """All operations of the pool."""

    def __init__(self, rules: Rules, state: State | None = None) -> None:
        self.rules = rules
        self.ledger = Ledger(rules, state)
        self.state = self.ledger.state
        self._operations: dict[type, Callable[[Any, float], Reply]] = {
            OpenGroup: self._open_group,
            SubmitSteps: self._submit_steps,
            CompleteTrajectory: self._complete,
            SubmitScores: self._submit_scores,
            FetchBatch: self._fetch,
            Ack: self._ack,
            Nack: self._nack,
            Hold: self._hold,
            SetPolicyVersion: self._set_version,
            EndRun: self._end_run,
            Abandon: self._abandon,
            Feedback: self._feedback,
        }

    def apply(self, event: Event, now: float) -> Reply:
        """One operation at time `now` (unix seconds). Raises Refusal, having changed nothing but the clock."""
        reply = self._operations[type(event)](event, self.advance(now))
        self.ledger.evict()
        return reply

    def advance(self, now: float) -> float:
        """Let time pass: leases and deadlines that have run out. Returns the time, which never runs backwards."""
        self.state.clock = now = max(now, self.state.clock)
        for _, number, name in self.ledger.due(now):
            lease = self.state.leases.get(name)
            if lease and lease.until <= now:
                self.ledger.count("leases_expired")
                self._release(lease)
            elif number in self.state.groups:
                self._deadline(self.state.groups[number])
            self.ledger.evict()
        return now

    def take_notes(self) -> list[Noted]:
        """Feedback taken since the last call, each once."""
        notes, self.ledger.notes = self.ledger.notes, []
        return notes

    def take_ended(self) -> list[Ended]:
        """Trajectories that ended since the last call, each once."""
        ended, self.ledger.outbox = self.ledger.outbox, []
        return ended

    # ------------------------------------------------------------ in

    @property
    def slots(self) -> int:
        """Training groups that may still be opened."""
        return 0 if self.state.over else self.rules.max_in_flight - self.ledger.in_flight

    def _open_group(self, event: OpenGroup, now: float) -> Reply:
        state = self.state
        opened = GroupOpened(event.prompt_uid, state.version)
        fresh = [uid for uid in event.trajectory_uids if uid not in state.tombstones]
        known = [state.trajectories[uid] for uid in fresh if uid in state.trajectories]
        if not fresh or any(state.groups[t.group].opened for t in known):
            return opened  # sent again
        if event.channel == TRAIN and not known and self.state.over:
            return Busy("the run is over: the trainer has finished its last step")
        if event.channel == TRAIN and not known and self.slots <= 0:
            return Busy(f"{self.ledger.in_flight} training groups are in flight, the limit is reached")
        if known:  # its steps were faster
            group = self.ledger.announced(state.groups[known[0].group])
        else:
            group = self.ledger.new_group(event.prompt_uid, event.channel, now)
        group.opened, group.env, group.task, group.owner = True, event.env, event.task, event.owner
        for uid in fresh:
            if uid not in state.trajectories:
                self.ledger.begin(uid, group)
        return opened

    def _submit_steps(self, event: SubmitSteps, now: float) -> Reply:
        self.ledger.check_repeats(event.steps)
        taken: list[Step] = []
        duplicate = refused = 0
        for step in event.steps:
            trajectory = self._trajectory(step.trajectory_uid, step.prompt_uid, step.channel, now)
            if trajectory is None:
                refused += 1
            elif step.step_index in trajectory.steps:
                duplicate += 1
            elif trajectory.complete:
                refused += 1
            else:
                taken.append(step)
                self._take_in(trajectory, step)
        self.ledger.count_steps(taken)
        self.ledger.count("duplicate_steps", duplicate)
        self.ledger.count("refused_steps", refused)
        return Done(len(taken), duplicate, refused)

    def _take_in(self, trajectory: LiveTrajectory, step: Step) -> None:
        self.ledger.add_step(trajectory, step)
        if trajectory.complete:
            self._completed(trajectory)
        if group := self.state.groups.get(trajectory.group):
            self.ledger.drop_if_stale(group)

    def _trajectory(self, uid: str, prompt_uid: str, channel: str, now: float) -> LiveTrajectory | None:
        """The live trajectory `uid`, begun here if it is new; None if it has ended, or would begin after the run."""
        if trajectory := self.state.trajectories.get(uid):
            return trajectory
        if uid in self.state.tombstones or (self.state.over and (channel or TRAIN) == TRAIN):
            return None
        return self.ledger.begin(uid, self.ledger.grown_group(prompt_uid or uid, channel or TRAIN, now))

    def _complete(self, event: CompleteTrajectory, now: float) -> Reply:
        if event.status not in ("complete", "failed"):
            raise Refusal(f"trajectory {event.trajectory_uid}: status is complete or failed, not {event.status!r}")
        uid = event.trajectory_uid
        if event.only_known and uid not in self.state.trajectories and uid not in self.state.tombstones:
            raise Refusal(f"no trajectory {uid} here")
        trajectory = self._trajectory(uid, event.prompt_uid, event.channel, now)
        if trajectory is None or trajectory.num_steps >= 0:
            return Done(duplicate=1)
        if event.status == "complete" and event.num_steps < (known := len(trajectory.steps)):
            why = f"it has {known} steps here, its end speaks of {event.num_steps}"
            raise Refusal(f"trajectory {uid}: {why}; {TWO_GATEWAYS}")
        trajectory.num_steps = event.num_steps
        trajectory.facts = event.facts
        trajectory.reward = event.reward
        if event.status == "failed":
            self.ledger.end(trajectory, "failed")
        elif event.num_steps <= 0:
            self.ledger.end(trajectory, "failed", error="the agent made no model call")
        elif trajectory.complete:
            self._completed(trajectory)
        return Done(accepted=1)

    def _completed(self, trajectory: LiveTrajectory) -> None:
        """All steps and the end are here."""
        if self.state.groups[trajectory.group].channel != TRAIN:
            self.ledger.end(trajectory, "complete")
            return
        rewards = [step.reward for step in trajectory.steps.values() if step.reward is not None]
        if trajectory.reward is not None:
            trajectory.reward_parts = {"given": trajectory.reward}
        elif rewards:
            trajectory.reward = math.fsum(rewards)
            trajectory.reward_parts = {"steps": trajectory.reward}
        if trajectory.reward is None:
            self.ledger.unscored.add(trajectory.uid)
        elif math.isfinite(trajectory.reward):
            self.ledger.settle(trajectory)
        else:
            self.ledger.end(trajectory, "failed", error=f"the reward given is {trajectory.reward}")

    def open_steps(self) -> dict[str, tuple[int, int]]:
        """(number of Steps, next free index) of the live trajectories that have some; not an event."""
        live = self.state.trajectories.values()
        return {one.uid: (len(one.steps), max(one.steps) + 1) for one in live if one.steps}

    # ------------------------------------------------------------ scores

    def take_unscored(self, limit: int, now: float, steps: bool = True) -> list[Trajectory]:
        """Complete trajectories without a reward, the first completed first; not an event: nothing depends on it."""
        trajectories = [self.state.trajectories[uid] for uid in self.ledger.unscored.take(limit, now)]
        return [trajectory.view(self.state.groups[trajectory.group], steps) for trajectory in trajectories]

    def _submit_scores(self, event: SubmitScores, now: float) -> Reply:
        del now
        accepted = duplicate = refused = 0
        for score in event.scores:
            trajectory = self.state.trajectories.get(score.trajectory_uid)
            if trajectory is None or trajectory.reward is not None:
                duplicate += 1
            elif not trajectory.complete:
                refused += 1
            else:
                accepted += 1
                self._score(trajectory, score)
        return Done(accepted, duplicate, refused)

    def _score(self, trajectory: LiveTrajectory, score: Score) -> None:
        if score.error or not math.isfinite(score.reward):
            self.ledger.count("scoring_errors")
            self.ledger.end(trajectory, "failed", error=score.error or f"the reward is {score.reward}")
            return
        trajectory.reward = score.reward
        trajectory.reward_parts, trajectory.step_rewards = score.parts, score.step_rewards
        self.ledger.settle(trajectory)

    def _feedback(self, event: Feedback, now: float) -> Reply:
        del now
        uid = event.trajectory_uid
        if event.uid and event.uid in self.state.feedback:
            return FeedbackTaken(duplicate=True)
        if not math.isfinite(event.value):
            raise Refusal(f"feedback on {uid}: the value is {event.value}")
        trajectory = self.state.trajectories.get(uid)
        if trajectory is None and uid not in self.state.tombstones:
            raise Refusal(f"no trajectory {uid!r} is known")
        if trajectory and event.step_index >= 0 and event.step_index not in trajectory.steps:
            raise Refusal(f"trajectory {uid} has no step {event.step_index}")
        return FeedbackTaken(rescored=self.ledger.note(event))

    # ------------------------------------------------------------ out

    def _fetch(self, event: FetchBatch, now: float) -> Reply:
        """All or nothing. The same lease name again gives the same groups (those that have not ended since)."""
        if event.channel != TRAIN:
            raise Refusal(f"channel {event.channel!r} is not trained; its trajectories are read with TakeFinished")
        if event.groups <= 0 or not event.lease:
            raise Refusal("FetchBatch needs a number of groups above 0 and a lease name")
        lease = self.state.leases.get(event.lease)
        if lease is None:
            if self.ledger.ready < event.groups:
                return Batch(policy_version=self.state.version)
            groups = [self.ledger.lend_next(event.lease).number for _ in range(event.groups)]
            until = now + (event.lease_s or self.rules.lease_timeout_s)
            lease = self.state.leases[event.lease] = Lease(event.lease, until, groups)
            self.ledger.add_timer((until, 0, event.lease))
            self.ledger.count("groups_leased", event.groups)
            self.ledger.count("fetches")
        return Batch(lease.name, [self._group(self.state.groups[n]) for n in lease.groups], self.state.version)

    def _group(self, group: LiveGroup) -> Group:
        trajectories = [self.state.trajectories[uid].view(group) for uid in group.members]
        return Group(group.prompt_uid, group.env, trajectories, group.opened_version)

    def _ack(self, event: Ack, now: float) -> Reply:
        del now
        if wrong := sorted(set(event.outcomes.values()) - set(OUTCOMES)):
            raise Refusal(f"Ack of {event.lease}: {', '.join(wrong)}: an outcome is one of {', '.join(OUTCOMES)}")
        lease = self.state.leases.get(event.lease)
        held = [uid for n in (lease.groups if lease else ()) for uid in self.state.groups[n].members]
        if left_out := [uid for uid in held if uid not in event.outcomes]:
            raise Refusal(f"Ack of {event.lease} leaves out {len(left_out)} trajectories, e.g. {left_out[0]}")
        accepted = duplicate = refused = 0
        for uid, outcome in event.outcomes.items():
            trajectory = self.state.trajectories.get(uid)
            if trajectory and trajectory.reward is not None:
                self.ledger.end(trajectory, outcome)
                accepted += 1
            elif uid in self.state.tombstones:
                duplicate += 1
            else:
                refused += 1
        return Done(accepted, duplicate, refused)

    def _nack(self, event: Nack, now: float) -> Reply:
        del now
        leases = list(self.state.leases.values()) if not event.lease else [self.state.leases.get(event.lease)]
        given_back = sum(self._release(lease) for lease in leases if lease)
        return Done(accepted=given_back, duplicate=0 if given_back or not event.lease else 1)

    def _hold(self, event: Hold, now: float) -> Reply:
        del now
        if not event.lease:
            raise Refusal("Hold needs the name of a lease")
        state, named = self.state, set(event.trajectory_uids)
        known = {state.trajectories[uid].group: None for uid in event.trajectory_uids if uid in state.trajectories}
        groups = [state.groups[number] for number in known if named.issuperset(state.groups[number].members)]
        groups = [group for group in groups if group.lease in ("", event.lease)]
        if open_ones := [g.prompt_uid for g in groups if g.unsettled]:
            raise Refusal(f"Hold of {event.lease}: {len(open_ones)} of its groups are not ready, e.g. {open_ones[0]}")
        lent = state.leases[event.lease].groups if event.lease in state.leases else []
        held = list(dict.fromkeys([*lent, *(group.number for group in groups)]))
        for number in held:
            self.ledger.hold(state.groups[number], event.lease)
        if held:
            state.leases[event.lease] = Lease(event.lease, math.inf, held)
        return Done(accepted=len(held))

    def _release(self, lease: Lease) -> int:
        del self.state.leases[lease.name]
        for number in lease.groups:
            self.ledger.give_back(self.state.groups[number])
        return len(lease.groups)

    # ------------------------------------------------------------ policy version and time

    def _set_version(self, event: SetPolicyVersion, now: float) -> Reply:
        del now
        self.state.version = event.version
        self.state.over = False
        for group in list(self.state.groups.values()):
            self.ledger.drop_if_stale(group)
        return Done(accepted=1)

    def _end_run(self, event: EndRun, now: float) -> Reply:
        del event, now
        self.state.over = True
        groups = [group for group in self.state.groups.values() if group.channel == TRAIN]
        ended = sum(len(group.members) for group in groups)
        for group in groups:
            self.ledger.end_all(group, "expired")
        return Done(accepted=ended)

    def _abandon(self, event: Abandon, now: float) -> Reply:
        del now
        groups = [group for group in self.state.groups.values() if event.owner and group.owner == event.owner]
        before = self.state.ended
        for group in groups:
            self._deadline(group)
        return Done(accepted=self.state.ended - before)

    def _deadline(self, group: LiveGroup) -> None:
        """Incomplete trajectories expire; with fewer than `min_group_size` complete ones, the whole group does.

        Complete trajectories that only wait for their score are not to blame: the group then waits on.
        """
        members = [self.state.trajectories[uid] for uid in group.members]
        incomplete = [trajectory for trajectory in members if not trajectory.complete]
        enough = self.rules.min_group_size or len(members)
        if not incomplete:
            return
        gone = members if len(members) - len(incomplete) < enough else incomplete
        for trajectory in gone:
            self.ledger.end(trajectory, "expired")

    # ------------------------------------------------------------ numbers

    def statistics(self) -> dict[str, float]:
        """Flat numbers for `top`, metrics and tests."""
        return numbers.statistics(self.ledger)
