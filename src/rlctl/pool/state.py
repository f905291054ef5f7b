"""The pool's state: everything that must survive a crash, as plain structs (one msgpack document is a snapshot)."""

from dataclasses import dataclass

import msgspec

from rlctl.errors import WireError
from rlctl.wire.messages import Feedback
from rlctl.wire.samples import Facts, Step, Trajectory


class Refusal(WireError):
    """A request that cannot be honoured; it changed nothing."""


@dataclass(frozen=True)
class Rules:
    """The numbers of the configuration that the store obeys."""

    max_in_flight: int
    """Training groups opened and not yet ended: `(max_staleness + 1) * groups_per_step`."""
    max_staleness: int = 1
    min_group_size: int = 0
    """Complete trajectories that are enough at the deadline; 0: all of the group."""
    group_timeout_s: float = 600.0
    lease_timeout_s: float = 900.0
    score_timeout_s: float = 60.0
    order: str = "fifo"
    """Which ready group is handed out first: a key of `ordering.ORDERS`."""
    max_queue_size: int = 0
    """Ready groups kept; 0: any number."""
    evict: str = "oldest"
    """Which one goes beyond that: a key of `ordering.EVICTIONS`."""
    feedback_weight: float = 1.0


class LiveTrajectory(msgspec.Struct):
    """A trajectory that has not reached its end."""

    uid: str
    group: int
    steps: dict[int, Step] = {}
    """By step_index; they arrive in any order."""
    num_steps: int = -1
    """Told by CompleteTrajectory; -1: the episode goes on."""
    facts: Facts = Facts()
    reward: float | None = None
    reward_parts: dict[str, float] = {}
    step_rewards: list[float] = []
    feedback: list[Feedback] = []
    """Waits for the reward, or for the end of a lease."""

    @property
    def complete(self) -> bool:
        return 0 <= self.num_steps <= len(self.steps)

    def view(self, group: "LiveGroup", steps: bool = True) -> Trajectory:
        """What leaves the pool: steps in order of their index (or none of them)."""
        return Trajectory(
            uid=self.uid,
            prompt_uid=group.prompt_uid,
            channel=group.channel,
            steps=[self.steps[i] for i in sorted(self.steps)] if steps else [],
            status="complete" if self.complete else "open",
            facts=self.facts,
            reward=self.reward,
            reward_parts=self.reward_parts,
            step_rewards=self.step_rewards,
            env=group.env,
            task=group.task,
        )


class LiveGroup(msgspec.Struct):
    """A group with at least one live trajectory."""

    number: int
    """1, 2, 3, ... in the order of opening."""
    prompt_uid: str
    channel: str
    deadline: float
    """Unix seconds; what is not complete then expires."""
    opened_version: int = 0
    env: str = ""
    task: dict[str, str] = {}
    owner: str = ""
    """Who plays its episodes."""
    opened: bool = False
    """By OpenGroup; else it grew out of steps nobody announced."""
    members: dict[str, bool] = {}
    """Live trajectories -> settled (complete and scored)."""
    unsettled: int = 0
    """Members that are not settled; 0: ready."""
    oldest: int | None = None
    """Lowest policy version among all its tokens."""
    lease: str = ""
    held: bool = False
    """Learned from, and kept until a checkpoint contains it: on lease, but no longer counted in admission."""


class Lease(msgspec.Struct):
    name: str
    until: float
    """Unix seconds; infinite while it is held."""
    groups: list[int]


class State(msgspec.Struct):
    """The whole of it."""

    version: int = -1
    """Current policy version; -1 until the trainer announces one."""
    groups: dict[int, LiveGroup] = {}
    trajectories: dict[str, LiveTrajectory] = {}
    leases: dict[str, Lease] = {}
    tombstones: dict[str, str] = {}
    """Ended trajectories -> outcome, the most recent ones: a late message cannot bring them back to life."""
    counters: dict[str, int] = {}
    """`CHANNEL.created`, `CHANNEL.OUTCOME`, `steps`, `duplicate_steps`, ...: only ever growing."""
    groups_opened: int = 0
    ended: int = 0
    """Trajectories that reached an end, all channels."""
    feedback: dict[str, None] = {}
    """Idempotency keys of the feedback taken, the most recent ones."""
    noted: int = 0
    """Feedback taken, all of it."""
    over: bool = False
    """The trainer has finished: nothing new begins in the training channel until it announces a version again."""
    clock: float = 0.0
    """Time of the last event; time never runs backwards."""
