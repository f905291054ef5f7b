"""Episodes without a board: a conversation whose answers a judge takes, one after the other.

opening messages -> (a model) -> feed(text) -> judge(text, turn) -> Verdict -> feedback -> ... until done
"""

from collections.abc import Callable
from typing import NamedTuple

from rlctl.config.serving import Env
from rlctl.envs.base import Message
from rlctl.wire.samples import Facts


class Verdict(NamedTuple):
    """What one answer led to."""

    reward: float
    success: bool = False
    done: bool = True
    invalid: bool = False
    """The answer could not be read: costs the format penalty."""
    feedback: str = ""
    """What the player is told next where the episode goes on."""


Judge = Callable[[str, int], Verdict]
"""(answer, number of the turn from 1) -> Verdict."""


class Exchange:
    """One episode; ends with the judge's `done` or after `env.max_turns` answers."""

    def __init__(self, env: Env, opening: list[Message], judge: Judge) -> None:
        self.messages = list(opening)
        self.done = False
        self.success = False
        self._env = env
        self._judge = judge
        self._rewards: list[float] = []
        self._invalid = 0
        self._truncated = False

    def feed(self, answer: str) -> bool:
        if self.done:
            raise ValueError("the episode is over")
        verdict = self._judge(answer, len(self._rewards) + 1)
        self.messages.append({"role": "assistant", "content": answer})
        self._rewards.append(verdict.reward)
        self._invalid += verdict.invalid
        self.done, self.success = verdict.done, verdict.success
        if not self.done and len(self._rewards) == self._env.max_turns:
            self.stop()
        if not self.done:
            self.messages.append({"role": "user", "content": verdict.feedback})
        return self.done

    def stop(self) -> None:
        self.done = self._truncated = True

    def facts(self) -> Facts:
        return Facts(
            env_reward=sum(self._rewards),
            success=self.success,
            turn_rewards=list(self._rewards),
            format_errors=self._invalid,
            actions=len(self._rewards),
            truncated=self._truncated,
            extra={
                "format_penalty": self._env.format_penalty * self._invalid,
                "turns": float(len(self._rewards)),
            },
        )


def opening(system: str, user: str) -> list[Message]:
    """The first messages of a conversation; no system turn for an empty `system`."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": user}]
