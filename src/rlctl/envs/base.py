"""What an environment is: a Family makes instances, a World plays one episode of one instance, an Expert plays it well.

    seed -- Family.instance --> Instance -- Family.world(stream) --> World -- step, step, ... --> done
                                         -- Family.expert(tie)  --> Expert.next(world)

An Instance is compared by its `key` (the board as text), never by its seed. Everything random in an episode comes
from `(instance.seed, stream)`, so each rollout of a group has luck of its own and every episode can be played again.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from rlctl.config.serving import Env

Reason = Literal["no_instance", "unsolvable", "too_deep", "too_large"]


@dataclass(frozen=True, slots=True)
class Instance:
    """One start situation."""

    key: str
    """Canonical text of the board; equal keys are the same instance, whatever their seeds."""
    seed: int
    payload: Any
    """What the family made; only the family looks inside."""
    shortest: int
    """Fewest actions from start to success (on slippery ice: if every move went as intended)."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A seed that gives no instance, and why."""

    reason: Reason


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


class Family(Protocol):
    """All instances of one [[env]]."""

    actions: tuple[str, ...]
    rules: str
    """What the player is told once."""
    symbols: dict[str, str]
    """Character -> meaning."""
    shares: dict[str, int]
    """Per cent of all boards that belong to each split."""

    def instance(self, seed: int) -> Instance | Skip:
        """The instance of this seed, the same in every process and Python."""

    def world(self, instance: Instance, stream: int) -> Any:
        """A fresh episode; `stream` numbers the rollouts of one instance."""

    def expert(self, instance: Instance, tie: int) -> Any:
        """An optimal player; among equally good actions it chooses by the seed `tie` where the family has a choice."""

    def floor(self, instance: Instance, actions: int) -> Rate:
        """Success of uniformly random play within `actions` actions."""

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        """Success of optimal play within `actions` actions."""


def horizon(env: Env) -> int:
    """Most actions an episode can have: what floor and ceiling are computed for."""
    return min(env.max_actions, env.max_turns * env.actions_per_turn)
