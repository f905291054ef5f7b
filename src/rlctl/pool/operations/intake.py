"""Groups, Steps and ends come in."""

import math

from rlctl.pool.ledger import TWO_GATEWAYS, Ledger
from rlctl.pool.state import LiveGroup, LiveTrajectory, Refusal
from rlctl.wire.messages import (
    Abandon,
    Busy,
    CompleteTrajectory,
    Done,
    GroupOpened,
    OpenGroup,
    Reply,
    SubmitSteps,
)
from rlctl.wire.samples import TRAIN, Step


class Intake:
    """From the first word of a group to its complete trajectories."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.state = ledger.state

    def open_group(self, event: OpenGroup, now: float) -> Reply:
        state = self.state
        opened = GroupOpened(event.prompt_uid, state.version)
        fresh = [uid for uid in event.trajectory_uids if uid not in state.tombstones]
        known = [state.trajectories[uid] for uid in fresh if uid in state.trajectories]
        if not fresh or any(state.groups[t.group].opened for t in known):
            return opened  # sent again
        if event.channel == TRAIN and not known and self.state.over:
            return Busy("the run is over: the trainer has finished its last step")
        if event.channel == TRAIN and not known and self.ledger.slots <= 0:
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

    def submit_steps(self, event: SubmitSteps, now: float) -> Reply:
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

    def complete(self, event: CompleteTrajectory, now: float) -> Reply:
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

    def abandon(self, event: Abandon, now: float) -> Reply:
        del now
        groups = [group for group in self.state.groups.values() if event.owner and group.owner == event.owner]
        before = self.state.ended
        for group in groups:
            self.deadline(group)
        return Done(accepted=self.state.ended - before)

    def deadline(self, group: LiveGroup) -> None:
        """Incomplete trajectories expire; with fewer than `min_group_size` complete ones, the whole group does.

        Complete trajectories that only wait for their score are not to blame: the group then waits on.
        """
        members = [self.state.trajectories[uid] for uid in group.members]
        incomplete = [trajectory for trajectory in members if not trajectory.complete]
        enough = self.ledger.rules.min_group_size or len(members)
        if not incomplete:
            return
        gone = members if len(members) - len(incomplete) < enough else incomplete
        for trajectory in gone:
            self.ledger.end(trajectory, "expired")
