"""The built-in agent: plays an environment, one chat completion per turn."""

import asyncio
from typing import Any

import msgspec

from rlctl.agents.client import CallFailed, Client
from rlctl.envs.base import Play
from rlctl.wire.messages import Facts


async def play(client: Client, base_url: str, episode: Play, sampling: dict[str, Any], timeout_s: float) -> Facts:
    """Run `episode` to its end and report it to the gateway; a failure is data (Facts.error), not an exception."""
    error = ""
    try:
        async with asyncio.timeout(timeout_s):
            while not episode.done:
                reply = await client.chat(base_url, episode.messages, sampling)
                episode.feed(reply.text)
    except CallFailed as failure:
        if failure.code == "context_length_exceeded":
            episode.stop()
        else:
            error = str(failure)
    except TimeoutError:
        error = f"episode_timeout: not over after {timeout_s:g} s"
    facts = msgspec.structs.replace(episode.facts(), error=error)
    try:
        await client.complete(base_url, {"status": "failed" if error else "complete", "facts": facts})
    except CallFailed as failure:
        return msgspec.structs.replace(facts, error=f"{error or 'the end was not recorded'}; {failure}")
    return facts
