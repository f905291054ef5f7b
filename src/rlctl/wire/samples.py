"""The data that messages carry: Steps, trajectories, groups, scores, measurements (msgspec structs, no behaviour).

They form no cycles, so the garbage collector need not look at them (a pool keeps millions): `gc=False`.
"""

import msgspec

OUTCOMES = ("trained", "stale", "zero_variance", "overlong", "filtered", "failed", "evicted", "expired")
"""Every sample (trajectory) of a training channel ends in exactly one of these."""

TRAIN = "train"
VAL = "val"


class Step(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One model call of one trajectory.

    The full context the engine saw is `context(parent) + prompt_ids`, where `context(step)` of a parent is its own full
    context plus its response; `parent == -1` means `prompt_ids` is the whole prompt. So a trajectory of T turns is
    stored in O(T), and a chain of parents is one training sample.
    """

    trajectory_uid: str
    step_index: int
    """0, 1, 2, ... in the order the gateway accepted the calls of this trajectory."""
    prompt_ids: bytes
    """int32 `[P]`: prompt tokens after the parent's context and response (all of them without a parent)."""
    response_ids: bytes
    """int32 `[R]`: exactly what the engine sampled."""
    logprobs: bytes
    """float32 `[R]`: the engine's log-probability of each response token, after temperature."""
    versions: list[tuple[int, int]]
    """Run-length policy versions `[(version, tokens), ...]`; the tokens sum to R."""
    parent: int = -1
    """`step_index` whose context this prompt extends exactly, or -1."""
    fork_reason: str = ""
    """Why a step after the first has no parent at the tip: cut_history, rewritten_history, template, parallel, ..."""
    finish_reason: str = "stop"
    """stop | length | tool_calls | abort"""
    temperature: float = 1.0
    prompt_uid: str = ""
    channel: str = ""
    """Only set when the gateway knows it (registered from outside); else the group's channel counts."""
    engine: str = ""
    reward: float | None = None
    """Reward given to this very step by a white-box agent."""
    images: list[str] = []
    """Names of the images in `prompt_ids`, in their order: files in the `images` folder of the gateway's run directory.
    `prompt_ids` has as many tokens in the place of each as the engine computed it with."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the agent's side knows about a finished episode."""

    env_reward: float = 0.0
    """Sum of the environment's rewards."""
    success: bool = False
    turn_rewards: list[float] = []
    """Environment reward per model call, aligned with `step_index` (0 where it wrote a summary); may be empty."""
    format_errors: int = 0
    """Turns whose answer could not be read."""
    actions: int = 0
    truncated: bool = False
    """The episode ran out of turns, actions or context."""
    extra: dict[str, float] = {}
    error: str = ""
    """Why the episode failed (status "failed")."""


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The Steps of one episode with its end."""

    uid: str
    prompt_uid: str
    channel: str
    steps: list[Step]
    status: str = "open"
    """open | complete | failed"""
    facts: Facts = Facts()
    reward: float | None = None
    reward_parts: dict[str, float] = {}
    step_rewards: list[float] = []
    """Where a part scores single Steps: the weighted sum for each of them (it is part of `reward`)."""
    env: str = ""
    task: dict[str, str] = {}
    """What the scorer needs: ground truth, question, ... (from OpenGroup)."""


class Group(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The trajectories of one prompt."""

    prompt_uid: str
    env: str
    trajectories: list[Trajectory]
    opened_version: int = 0


class Ended(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record of `trajectories/`: a trajectory that reached its end."""

    number: int
    """1, 2, 3, ... in the order of endings."""
    outcome: str
    """One of OUTCOMES in the training channel; complete, failed or expired elsewhere."""
    trajectory: Trajectory
    t: float = 0.0
    """Unix seconds."""


class Score(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A reward for one trajectory; `error` names why scoring failed (the trajectory then counts as failed)."""

    trajectory_uid: str
    reward: float = 0.0
    parts: dict[str, float] = {}
    error: str = ""
    step_rewards: list[float] = []


class EvalResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One measured rate, with what it has to be compared to (same instances)."""

    step: int
    env: str
    name: str
    temperature: float
    episodes: int
    success_rate: float
    success_se: float
    mean_reward: float
    failed: int = 0
    """Episodes that ended in an error; they count as unsuccessful."""
    mean_turns: float = 0.0
    format_errors: float = 0.0
    floor: float | None = None
    """Success of uniformly random play on the same instances."""
    ceiling: float | None = None
    """Success of optimal play on the same instances."""
    policy_version: int = 0
    seconds: float = 0.0
