"""One episode to be played: what every agent is given, and how its end is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from rlctl.agents.client import CallFailed, Client
from rlctl.envs.base import Play
from rlctl.wire.samples import Facts


@dataclass(frozen=True)
class Call:
    """One episode."""

    base_url: str
    """Where the model is called: this very trajectory's OpenAI address."""
    episode: Play
    sampling: Mapping[str, Any]
    """temperature, max_tokens and, unless greedy, top_p."""
    timeout_s: float
    """For the whole episode."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What a program outside is told about its task."""
    recorded: bool = True
    """The address is our gateway's, which wants to know the end of the episode."""


class Agent(Protocol):
    """Plays the episodes of one [[env]], many at a time."""

    async def play(self, client: Client, call: Call) -> Facts:
        """One episode to its end, told to the gateway; a failure is data (Facts.error)."""

    async def close(self) -> None:
        """End what it started."""


async def report(client: Client, call: Call, facts: Facts) -> Facts:
    """Tell the gateway that the episode is over; that it could not be told is added to the facts."""
    if not call.recorded:
        return facts
    try:
        await client.complete(call.base_url, {"status": "failed" if facts.error else "complete", "facts": facts})
    except CallFailed as failure:
        error = f"{facts.error or 'the end was not recorded'}; {failure}"
        return msgspec.structs.replace(facts, error=error)
    return facts
