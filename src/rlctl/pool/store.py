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

from collections.abc import Callable
from typing import Any

from rlctl.pool import numbers
from rlctl.pool.ledger import Ledger
from rlctl.pool.operations.intake import Intake
from rlctl.pool.operations.lending import Lending
from rlctl.pool.operations.scores import Scores
from rlctl.pool.state import Rules, State
from rlctl.wire.messages import (
    Abandon,
    Ack,
    CompleteTrajectory,
    Done,
    EndRun,
    Feedback,
    FetchBatch,
    Hold,
    Nack,
    Noted,
    OpenGroup,
    Reply,
    SetPolicyVersion,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import TRAIN, Ended

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
        self.intake = Intake(self.ledger)
        self.scores = Scores(self.ledger)
        self.lending = Lending(self.ledger)
        self._operations: dict[type, Callable[[Any, float], Reply]] = {
            OpenGroup: self.intake.open_group,
            SubmitSteps: self.intake.submit_steps,
            CompleteTrajectory: self.intake.complete,
            Abandon: self.intake.abandon,
            SubmitScores: self.scores.submit_scores,
            Feedback: self.scores.feedback,
            FetchBatch: self.lending.fetch,
            Ack: self.lending.ack,
            Nack: self.lending.nack,
            Hold: self.lending.hold,
            SetPolicyVersion: self._set_version,
            EndRun: self._end_run,
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
                self.lending.release(lease)
            elif number in self.state.groups:
                self.intake.deadline(self.state.groups[number])
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

    def statistics(self) -> dict[str, float]:
        """Flat numbers for `top`, metrics and tests."""
        return numbers.statistics(self.ledger)
