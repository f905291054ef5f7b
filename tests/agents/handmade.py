"""Tools and agents as somebody else would write them."""

import asyncio
from typing import Any

from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config.serving import Env
from rlctl.wire.samples import Facts


def weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "days": days}


async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def anything(*words: str) -> str:
    return " ".join(words)


class Twice:
    """Asks twice, answers with the second; closes once."""

    closed = 0

    def __init__(self, env: Env) -> None:
        self.turns = env.max_turns

    async def play(self, client: Client, call: Call) -> Facts | None:
        for _ in range(2):
            reply = await client.chat(call.base_url, call.episode.messages, call.sampling)
        call.episode.feed(reply.text)
        return None

    async def close(self) -> None:
        Twice.closed += 1


class Raises(Twice):
    async def play(self, client: Client, call: Call) -> Facts | None:
        raise KeyError("lost")


class Sleeps(Twice):
    async def play(self, client: Client, call: Call) -> Facts | None:
        await asyncio.sleep(60)
        return None


class Odd(Twice):
    async def play(self, client: Client, call: Call) -> Any:
        return 7


class Idle:
    def __init__(self, env: Env) -> None: ...
