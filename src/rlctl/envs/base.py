"""What an environment is: a Family gives instances and starts episodes; an episode (Play) is a conversation.

    Family.distinct(split) --> Instance -- Family.episode(stream) --> Play -- feed(answer), feed, ... --> facts()

Boards (rlctl.envs.boards) are families whose episodes move in a World; an Expert plays one well:

    seed -- Boards.instance --> Instance -- Boards.world(stream) --> World -- step, step, ... --> done
                                         -- Boards.expert(tie)  --> Expert.next(world)

An Instance is compared by its `key` (the board as text), never by its seed. Everything random in an episode comes
from `(instance.seed, stream)`, so each rollout of a group has luck of its own and every episode can be played again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from rlctl.config.serving import Env
from rlctl.wire.samples import Facts

Message = dict[str, str]
Reason = Literal["no_instance", "unsolvable", "too_deep", "too_large", "too_short"]


@dataclass(frozen=True, slots=True)
class Instance:
    """One start situation."""

    key: str
    """Canonical text of the board; equal keys are the same instance, whatever their seeds."""
    seed: int
    payload: Any
    """What the family made; only the family looks inside."""
    shortest: int
    """Fewest actions from start to success (on slippery ice: if every move went as intended; in a room that A* solved:
    those of its plan)."""
    source: str = ""
    """FILE:LINE it was read from, if it was."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A seed that gives no instance, and why."""

    reason: Reason
    source: str = ""
    """FILE:LINE, as in Instance."""


class Outcome(NamedTuple):
    """What one action led to."""

    reward: float
    done: bool
    success: bool


class Rate(NamedTuple):
    """A success probability; `exact` is False when it is a Monte Carlo estimate."""

    value: float
    exact: bool


class World(Protocol):
    """One running episode."""

    def render(self) -> str:
        """The state as lines of one character per cell."""

    def step(self, action: int) -> Outcome:
        """Play `family.actions[action]`; not to be called after `done`."""


class Expert(Protocol):
    """A player that maximises the probability of success."""

    def next(self, world: Any, limit: int) -> tuple[int, ...]:
        """The next 1..limit actions (only one where the world may answer differently than expected)."""

    def thought(self, world: Any, actions: tuple[int, ...]) -> str:
        """Why, in one sentence: what a demonstration with thoughts says before `actions`."""


class Play(Protocol):
    """One running episode as a conversation; a state machine without input or output."""

    @property
    def messages(self) -> list[Message]:
        """The conversation so far: what the next model call is sent."""

    @property
    def done(self) -> bool: ...

    @property
    def success(self) -> bool: ...

    def feed(self, answer: str) -> bool:
        """Take the assistant's answer to `messages`; True when the episode is over."""

    def stop(self) -> None:
        """End it from outside: out of context."""

    def facts(self) -> Facts:
        """What is known about the episode so far."""


class Player(Protocol):
    """What the words of an episode are made of."""

    actions: tuple[str, ...]
    rules: str
    symbols: dict[str, str]

    def world(self, instance: Instance, stream: int) -> Any:
        """A fresh World."""


class Family(Protocol):
    """All instances of one [[env]]. Worlds made of boards get most of this from rlctl.envs.boards.Boards."""

    @property
    def splits(self) -> tuple[str, ...]:
        """At least train and val; no instance is in two of them."""

    def distinct(self, split: str, seed: int) -> Iterator[Instance]:
        """Distinct instances of a split, always the same ones in the same order for the same seed."""

    def episode(self, instance: Instance, stream: int) -> Play:
        """A fresh episode; `stream` numbers the rollouts of one instance."""

    def task(self, instance: Instance) -> dict[str, str]:
        """What a reward function may need to know (ground_truth, question, ...)."""

    def floor(self, instance: Instance, actions: int) -> Rate | None:
        """Success of uniformly random play within `actions` actions; None where that cannot be known."""

    def ceiling(self, instance: Instance, actions: int) -> Rate | None:
        """Success of optimal play within `actions` actions; None where that cannot be known."""


def horizon(env: Env) -> int:
    """Most actions an episode can have: what floor and ceiling are computed for."""
    return min(env.max_actions, env.max_turns * env.actions_per_turn)
