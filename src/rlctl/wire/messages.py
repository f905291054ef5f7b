"""Every message that crosses a process, as frozen msgspec structs (msgpack on the wire).

Life of a sample:

    rollout  -- OpenGroup ------------> pool      a slot is charged (the one place of backpressure)
    gateway  -- SubmitSteps ----------> pool      one Step per model call, durable before the reply
    gateway  -- CompleteTrajectory ---> pool      how many Steps there are, environment reward, facts
    reward   -- TakeUnscored ---------> pool      <- Unscored;  -- SubmitScores --> pool
    train    -- FetchBatch -----------> pool      <- Batch (leased);  -- Ack (one outcome per trajectory) --> pool
    train    -- Hold -----------------> pool      learned, not in a checkpoint yet: Ack or Nack follows
    train    -- SetPolicyVersion -----> pool      after every engine serves it
    train    -- EndRun ---------------> pool      after the last step: what is still open ends as expired

A request is decoded with the type `Request`, a reply with `Reply`: a bad message fails at the door.
All operations are idempotent: a client that got no answer sends the same message again.
"""

import msgspec

from rlctl.wire.samples import TRAIN, EvalResult, Facts, Group, Score, Step, Trajectory


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of everything on the wire; the tag is the class name."""


# ---------------------------------------------------------------- requests to the pool


class OpenGroup(Message, frozen=True):
    """Ask for a slot. Answered with GroupOpened, or Busy when `wait_s` passed without a free slot."""

    prompt_uid: str
    trajectory_uids: list[str]
    channel: str = TRAIN
    env: str = ""
    task: dict[str, str] = {}
    wait_s: float = 10.0
    owner: str = ""
    """Who plays its episodes; see Abandon."""


class Abandon(Message, frozen=True):
    """`owner` begins anew: nobody plays what it had open, so its unfinished groups are treated as at their deadline."""

    owner: str


class SubmitSteps(Message, frozen=True):
    """Steps are on disk when Done comes back. A Step sent before is counted, not stored again; another Step under a
    trajectory and index that are taken is refused, with all of its message.
    """

    steps: list[Step]


class CompleteTrajectory(Message, frozen=True):
    """The episode is over and consists of `num_steps` Steps (they may still be on their way)."""

    trajectory_uid: str
    num_steps: int
    status: str = "complete"
    """complete | failed"""
    facts: Facts = Facts()
    reward: float | None = None
    """A reward from outside; the trajectory then needs no scoring."""
    prompt_uid: str = ""
    channel: str = ""
    only_known: bool = False
    """Refused where no Step and no OpenGroup has named the trajectory; else it begins and ends here."""


class TakeUnscored(Message, frozen=True):
    """Lease complete trajectories without a reward; waits up to `wait_s` for the first."""

    limit: int = 64
    wait_s: float = 5.0
    steps: bool = True
    """False: the trajectories come without their Steps (for a scorer that looks at facts only)."""


class SubmitScores(Message, frozen=True):
    scores: list[Score]


class FetchBatch(Message, frozen=True):
    """Lease `groups` ready groups of `channel`; waits up to `wait_s` for all of them, else Batch is empty."""

    groups: int
    channel: str = TRAIN
    wait_s: float = 5.0
    lease_s: float = 0.0
    """0: pool.lease_timeout_s."""
    lease: str = ""
    """A fresh name for the lease, chosen by the client: sent again (after a lost answer or a restart of the pool) it is
    answered with the same groups. Empty: the pool picks one."""


class Ack(Message, frozen=True):
    """The lease is used up: one outcome of OUTCOMES for every trajectory uid in it.

    Counts also when the lease has run out or the pool was restarted since: what is still open ends, once.
    """

    lease: str
    outcomes: dict[str, str]


class Nack(Message, frozen=True):
    """Give a lease back unused."""

    lease: str
    """Empty: all leases (a trainer that starts anew holds none)."""


class Hold(Message, frozen=True):
    """The lease was learned from, but no checkpoint on disk contains it: it waits for Ack or Nack without a time-out.

    Its groups no longer count in admission. A lease that has run out meanwhile is taken again, as far as its
    trajectories have not ended.
    """

    lease: str
    trajectory_uids: list[str]
    """All of the lease; those of other leases are left to them."""


class SetPolicyVersion(Message, frozen=True):
    """All engines serve `version` now; groups that are too old leave the queue."""

    version: int


class Feedback(Message, frozen=True):
    """What somebody thinks of a trajectory, at any time; answered with FeedbackTaken."""

    trajectory_uid: str
    value: float
    """Added to the reward with `pool.feedback_weight`, as the part `feedback`."""
    step_index: int = -1
    """The Step it is about; -1: the whole trajectory."""
    text: str = ""
    source: str = ""
    uid: str = ""
    """Idempotency key; the same one counts once."""


class Noted(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of `trajectories/feedback-*.log`."""

    number: int
    """1, 2, 3, ... in the order of arrival."""
    feedback: Feedback
    rescored: bool = False
    t: float = 0.0
    """Unix seconds."""


class EndRun(Message, frozen=True):
    """The trainer has finished its last step: every live training trajectory ends as `expired`, none begins any more.

    A later SetPolicyVersion (the run goes on with more steps) opens the pool again.
    """


class GetStatistics(Message, frozen=True):
    pass


class GetOpenSteps(Message, frozen=True):
    """Which trajectories are open and have Steps (asked by a gateway that starts: it may be a restarted one)."""


class TakeFinished(Message, frozen=True):
    """Trajectories that reached an end (any channel) after `cursor`, from the log in `trajectories/`."""

    cursor: int = 0
    limit: int = 100


# ---------------------------------------------------------------- requests to rollout


class Evaluate(Message, frozen=True):
    """Run the [[eval]] called `name` (all of them when empty) on the policy the engines serve now."""

    step: int
    name: str = ""
    episodes: int = 0
    """0: as configured."""
    split: str = "val"
    """val, or train (a warm start is measured on training instances)."""
    run: str = ""
    """Idempotency key: the same key is answered with the same result."""


# ---------------------------------------------------------------- replies


class Done(Message, frozen=True):
    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    """Steps for trajectories that have already ended."""


class GroupOpened(Message, frozen=True):
    prompt_uid: str
    policy_version: int = 0


class FeedbackTaken(Message, frozen=True):
    rescored: bool = False
    """It counts in the reward; else the trajectory is already trained, or on its way, and the feedback is kept."""
    duplicate: bool = False


class Busy(Message, frozen=True):
    """No slot; ask again."""

    reason: str = ""


class Unscored(Message, frozen=True):
    trajectories: list[Trajectory] = []


class Batch(Message, frozen=True):
    """Empty `lease` means: not enough ready groups in time."""

    lease: str = ""
    groups: list[Group] = []
    policy_version: int = 0


class Statistics(Message, frozen=True):
    values: dict[str, float] = {}
    """Flat numbers, e.g. `train.created`, `train.trained`, `queue_ready`, `policy_version`."""
    live_port: int = 0
    """Where the pool publishes Live messages, on its own host; see wire/live.py."""


class OpenSteps(Message, frozen=True):
    """By trajectory uid: (number of its Steps, the next free step_index)."""

    steps: dict[str, tuple[int, int]] = {}


class Finished(Message, frozen=True):
    cursor: int = 0
    trajectories: list[Trajectory] = []
    outcomes: list[str] = []


class Evaluated(Message, frozen=True):
    results: list[EvalResult] = []


class Refused(Message, frozen=True):
    """The peer understood the request and says no; `reason` is for the user."""

    reason: str


# ---------------------------------------------------------------- published by the pool


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trajectory that has just ended, in short."""

    uid: str
    channel: str
    env: str
    outcome: str
    reward: float | None
    steps: int
    tokens: int
    """Sampled ones."""
    versions: list[int]
    """Policy versions that sampled them."""


class Live(Message, frozen=True):
    """What the pool tells everybody who listens, every now and then; who comes late has missed nothing but `ended`."""

    t: float
    """Unix seconds."""
    values: dict[str, float]
    """As in Statistics."""
    ended: list[Finish] = []
    """Since the last one, the latest few."""


PoolRequest = (
    OpenGroup
    | Abandon
    | SubmitSteps
    | CompleteTrajectory
    | TakeUnscored
    | SubmitScores
    | FetchBatch
    | Ack
    | Nack
    | Hold
    | SetPolicyVersion
    | EndRun
    | Feedback
    | GetStatistics
    | GetOpenSteps
    | TakeFinished
)
Request = PoolRequest | Evaluate
Reply = (
    Done
    | GroupOpened
    | Busy
    | FeedbackTaken
    | Unscored
    | Batch
    | Statistics
    | OpenSteps
    | Finished
    | Evaluated
    | Refused
)
