"""Ready groups go out on leases, and come back or end."""

import math

from rlctl.pool.ledger import Ledger
from rlctl.pool.state import Lease, LiveGroup, Refusal
from rlctl.wire.messages import (
    Ack,
    Batch,
    Done,
    FetchBatch,
    Hold,
    Nack,
    Reply,
)
from rlctl.wire.samples import OUTCOMES, TRAIN, Group


class Lending:
    """Leases: FetchBatch, Ack, Nack, Hold."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.state = ledger.state

    def fetch(self, event: FetchBatch, now: float) -> Reply:
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
            until = now + (event.lease_s or self.ledger.rules.lease_timeout_s)
            lease = self.state.leases[event.lease] = Lease(event.lease, until, groups)
            self.ledger.add_timer((until, 0, event.lease))
            self.ledger.count("groups_leased", event.groups)
            self.ledger.count("fetches")
        return Batch(lease.name, [self._group(self.state.groups[n]) for n in lease.groups], self.state.version)

    def _group(self, group: LiveGroup) -> Group:
        trajectories = [self.state.trajectories[uid].view(group) for uid in group.members]
        return Group(group.prompt_uid, group.env, trajectories, group.opened_version)

    def ack(self, event: Ack, now: float) -> Reply:
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

    def nack(self, event: Nack, now: float) -> Reply:
        del now
        leases = list(self.state.leases.values()) if not event.lease else [self.state.leases.get(event.lease)]
        given_back = sum(self.release(lease) for lease in leases if lease)
        return Done(accepted=given_back, duplicate=0 if given_back or not event.lease else 1)

    def hold(self, event: Hold, now: float) -> Reply:
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

    def release(self, lease: Lease) -> int:
        del self.state.leases[lease.name]
        for number in lease.groups:
            self.ledger.give_back(self.state.groups[number])
        return len(lease.groups)
