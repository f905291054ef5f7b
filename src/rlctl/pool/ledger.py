"""Transitions that the operations are made of: a trajectory begins, settles, ends; a group becomes ready, leaves.

    begin -> (steps, completion) -> unscored -> settle -> [group ready] -> leased -> end(outcome)
      any state before "leased" ---------------------------------------------------> end(outcome)

Besides the State the ledger holds indices (ready heap, timers, scoring queue), which are rebuilt from a State.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from rlctl.pool import feedback
from rlctl.pool.ordering import EVICTIONS, ORDERS, Key
from rlctl.pool.scoring import ScoringQueue
from rlctl.pool.state import LiveGroup, LiveTrajectory, Refusal, Rules, State
from rlctl.wire.arrays import TOKEN_BYTES
from rlctl.wire.messages import Feedback, Noted
from rlctl.wire.samples import (
    TRAIN,
    Ended,
    Step,
    Trajectory,
)

TOMBSTONES = 200_000
"""Ended trajectories remembered."""
TWO_GATEWAYS = (
    "two gateways serve this trajectory: let the balancer hash on the first segment of the path, or give each gateway "
    "its gateway.public_url"
)
Timer = tuple[float, int, str]
"""(unix seconds, group number or 0, lease name or "")"""


class Ledger:
    """State and indices, with the transitions that keep them consistent."""

    def __init__(self, rules: Rules, state: State | None = None) -> None:
        self.rules = rules
        self.state = state or State()
        self.unscored = ScoringQueue(rules.score_timeout_s)
        self.outbox: list[Ended] = []
        """Trajectories that ended since the caller last emptied it."""
        self.notes: list[Noted] = []
        """Feedback taken since the caller last emptied it."""
        self.ready = 0
        """Training groups that can be fetched."""
        self.in_flight = 0
        """Training groups that have not ended."""
        self.resident_bytes = 0
        self.resident_steps = 0
        self._order, self._eviction = ORDERS[rules.order], EVICTIONS[rules.evict]
        self._ready_heap: list[tuple[Key, int]] = []
        self._victims: list[tuple[Key, int]] = []
        self._grown: dict[tuple[str, str], int] = {}
        self._timers: list[Timer] = []
        self._oldest_tombstones = deque(self.state.tombstones)
        self._index()

    def _index(self) -> None:
        state = self.state
        self._timers = [(g.deadline, g.number, "") for g in state.groups.values()]
        self._timers += [(lease.until, 0, lease.name) for lease in state.leases.values()]
        heapq.heapify(self._timers)
        for group in state.groups.values():
            self.in_flight += group.channel == TRAIN and not group.held
            if not group.lease:
                self._offer(group)
                if not group.opened:
                    self._grown[group.channel, group.prompt_uid] = group.number
        for trajectory in state.trajectories.values():
            self._resident(len(trajectory.steps), sum(_bytes(trajectory.steps.values())))
            if trajectory.complete and trajectory.reward is None:
                self.unscored.add(trajectory.uid)

    @property
    def slots(self) -> int:
        """Training groups that may still be opened."""
        return 0 if self.state.over else self.rules.max_in_flight - self.in_flight

    # ------------------------------------------------------------ counting

    def count(self, name: str, by: int = 1) -> None:
        self.state.counters[name] = self.state.counters.get(name, 0) + by

    def count_steps(self, steps: Sequence[Step]) -> None:
        """Steps that were added (and may have left again with a trajectory that ended meanwhile)."""
        prompts, responses, logprobs = _bytes(steps)
        self._resident(len(steps), prompts + responses + logprobs)
        self.count("steps", len(steps))
        self.count("prompt_tokens", prompts // TOKEN_BYTES)
        self.count("response_tokens", responses // TOKEN_BYTES)

    def _resident(self, steps: int, size: int) -> None:
        self.resident_steps += steps
        self.resident_bytes += size

    # ------------------------------------------------------------ beginnings

    def new_group(self, prompt_uid: str, channel: str, now: float) -> LiveGroup:
        self.state.groups_opened += 1
        deadline = now + self.rules.group_timeout_s
        group = LiveGroup(self.state.groups_opened, prompt_uid, channel, deadline, self.state.version)
        self.state.groups[group.number] = group
        self.in_flight += channel == TRAIN
        self.add_timer((deadline, group.number, ""))
        return group

    def grown_group(self, prompt_uid: str, channel: str, now: float) -> LiveGroup:
        """The group that collects trajectories nobody announced, for this prompt."""
        number = self._grown.get((channel, prompt_uid))
        if number is not None:
            return self.state.groups[number]
        group = self.new_group(prompt_uid, channel, now)
        self._grown[channel, prompt_uid] = group.number
        return group

    def announced(self, group: LiveGroup) -> LiveGroup:
        """A grown group was opened after all: it collects nobody else from now on."""
        self._forget_grown(group)
        return group

    def begin(self, uid: str, group: LiveGroup) -> LiveTrajectory:
        if not group.unsettled and group.members:
            self._withdraw(group)
        trajectory = self.state.trajectories[uid] = LiveTrajectory(uid, group.number)
        group.members[uid] = False
        group.unsettled += 1
        self.count(f"{group.channel}.created")
        return trajectory

    def check_repeats(self, steps: Iterable[Step]) -> None:
        """Refusal for a Step under an index that holds another one: it is no repeat, and dropping it would lose it."""
        trajectories, met = self.state.trajectories, dict[tuple[str, int], Step]()
        for step in steps:
            live = trajectories.get(step.trajectory_uid)
            known = live.steps.get(step.step_index) if live else None
            first = known or met.setdefault((step.trajectory_uid, step.step_index), step)
            if first is not step and first != step:
                place = f"step {step.step_index} of trajectory {step.trajectory_uid}"
                raise Refusal(f"{place} is here already, with other content; {TWO_GATEWAYS}")

    def add_step(self, trajectory: LiveTrajectory, step: Step) -> None:
        """`count_steps` follows."""
        trajectory.steps[step.step_index] = step
        if step.versions:
            group = self.state.groups[trajectory.group]
            lowest, _ = min(step.versions)
            group.oldest = lowest if group.oldest is None else min(group.oldest, lowest)

    # ------------------------------------------------------------ settling

    def settle(self, trajectory: LiveTrajectory) -> None:
        """`trajectory` is complete and has its reward."""
        group = self.state.groups[trajectory.group]
        self.unscored.discard(trajectory.uid)
        feedback.settle(trajectory, self.rules.feedback_weight)
        if not group.members[trajectory.uid]:
            group.members[trajectory.uid] = True
            group.unsettled -= 1
            self._offer(group)

    def _offer(self, group: LiveGroup) -> None:
        """Put `group` into the queue if it is ready."""
        if group.channel == TRAIN and group.members and not group.unsettled and not group.lease:
            self.ready += 1
            heapq.heappush(self._ready_heap, (self._order(group), group.number))
            if self.rules.max_queue_size:
                heapq.heappush(self._victims, (self._eviction(group), group.number))

    def _withdraw(self, group: LiveGroup) -> None:
        """Take a ready group out of the queue; its entries in the heaps are skipped later."""
        if self.queued(group):
            self.ready -= 1

    def queued(self, group: LiveGroup) -> bool:
        return group.channel == TRAIN and bool(group.members) and not group.unsettled and not group.lease

    def note(self, given: Feedback) -> bool:
        """Keep feedback on a live or ended trajectory; whether it counts in a reward."""
        state, trajectory = self.state, self.state.trajectories.get(given.trajectory_uid)
        group = state.groups[trajectory.group] if trajectory else None
        rescored = trajectory is not None and group is not None and group.channel == TRAIN and not group.lease
        if trajectory and group and group.channel == TRAIN:
            trajectory.feedback = [*trajectory.feedback, given]
            if rescored:
                feedback.settle(trajectory, self.rules.feedback_weight)
        state.noted += 1
        if given.uid:
            state.feedback[given.uid] = None
            if len(state.feedback) > TOMBSTONES:
                del state.feedback[next(iter(state.feedback))]
        self.notes.append(Noted(state.noted, given, rescored, state.clock))
        return rescored

    # ------------------------------------------------------------ lending

    def lend_next(self, lease: str) -> LiveGroup:
        """Take the ready group whose turn it is; there must be one."""
        group = self._next(self._ready_heap, self._order)
        self._withdraw(group)
        group.lease = lease
        self._forget_grown(group)
        return group

    def _next(self, heap: list[tuple[Key, int]], order: Callable[[LiveGroup], Key]) -> LiveGroup:
        """Remove the first entry that still holds: its group is in the queue, with this very key."""
        while True:
            key, number = heapq.heappop(heap)
            group = self.state.groups.get(number)
            if group is not None and self.queued(group) and order(group) == key:
                return group

    def evict(self) -> None:
        """Give up ready groups beyond `max_queue_size`."""
        while self.rules.max_queue_size and self.ready > self.rules.max_queue_size:
            self.end_all(self._next(self._victims, self._eviction), "evicted")

    def hold(self, group: LiveGroup, lease: str) -> None:
        """Keep a group for `lease` until Ack or Nack, outside admission."""
        if not group.lease:  # its lease ran out
            self._withdraw(group)
            group.lease = lease
            self._forget_grown(group)
        if not group.held:
            group.held = True
            self.in_flight -= 1

    def give_back(self, group: LiveGroup) -> None:
        """A leased group returns to its old place in the queue, or leaves if it has become too old meanwhile."""
        group.lease = ""
        self.in_flight += group.held
        group.held = False
        for uid in group.members:
            feedback.settle(self.state.trajectories[uid], self.rules.feedback_weight)
        self._offer(group)
        self.drop_if_stale(group)

    # ------------------------------------------------------------ endings

    def end(self, trajectory: LiveTrajectory, outcome: str, error: str = "") -> Trajectory:
        """The only way out: counted, remembered, put into the outbox. Its group may become ready or vanish."""
        state = self.state
        group = state.groups[trajectory.group]
        was_queued = self.queued(group)
        del state.trajectories[trajectory.uid]
        self.unscored.discard(trajectory.uid)
        if not group.members.pop(trajectory.uid):
            group.unsettled -= 1
        self._resident(-len(trajectory.steps), -sum(_bytes(trajectory.steps.values())))
        self.count(f"{group.channel}.{outcome}")
        state.tombstones[trajectory.uid] = outcome
        self._oldest_tombstones.append(trajectory.uid)
        if len(state.tombstones) > TOMBSTONES:
            del state.tombstones[self._oldest_tombstones.popleft()]
        state.ended += 1
        view = trajectory.view(group)
        if error or outcome == "failed":
            view = _failed(view, error)
        self.outbox.append(Ended(state.ended, outcome, view, state.clock))
        if not group.members:
            self.ready -= was_queued
            self._vanish(group)
        elif not was_queued:
            self._offer(group)
        return view

    def end_all(self, group: LiveGroup, outcome: str) -> None:
        for uid in list(group.members):
            self.end(self.state.trajectories[uid], outcome)

    def _vanish(self, group: LiveGroup) -> None:
        del self.state.groups[group.number]
        self.in_flight -= group.channel == TRAIN and not group.held
        self._forget_grown(group)
        lease = self.state.leases.get(group.lease)
        if lease:
            lease.groups.remove(group.number)
            if not lease.groups:
                del self.state.leases[lease.name]

    def _forget_grown(self, group: LiveGroup) -> None:
        key = (group.channel, group.prompt_uid)
        if self._grown.get(key) == group.number:
            del self._grown[key]

    def drop_if_stale(self, group: LiveGroup) -> None:
        """A training group with a token older than `version - max_staleness` ends; a leased one is the trainer's."""
        bound = self.state.version - self.rules.max_staleness
        if group.channel == TRAIN and not group.lease and group.oldest is not None and group.oldest < bound:
            self.end_all(group, "stale")

    # ------------------------------------------------------------ time

    def add_timer(self, timer: Timer) -> None:
        heapq.heappush(self._timers, timer)

    def due(self, now: float) -> Sequence[Timer]:
        """Remove and return the timers that have run out, the earliest first."""
        timers = []
        while self._timers and self._timers[0][0] <= now:
            timers.append(heapq.heappop(self._timers))
        return timers

    @property
    def next_timer(self) -> float | None:
        return self._timers[0][0] if self._timers else None


def _bytes(steps: Collection[Step]) -> tuple[int, int, int]:
    """Of prompts, responses and log-probabilities."""
    return (
        sum([len(step.prompt_ids) for step in steps]),
        sum([len(step.response_ids) for step in steps]),
        sum([len(step.logprobs) for step in steps]),
    )


def _failed(view: Trajectory, error: str) -> Trajectory:
    facts = msgspec.structs.replace(view.facts, error=error or view.facts.error)
    return msgspec.structs.replace(view, status="failed", facts=facts)
