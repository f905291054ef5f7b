"""The built-in agent: plays an environment, one chat completion per turn."""

import asyncio

import msgspec

from rlctl.agents.call import Call, report
from rlctl.agents.client import CallFailed, Client
from rlctl.wire.samples import Facts


async def play(client: Client, call: Call) -> Facts:
    """Run the episode to its end and report it to the gateway; a failure is data (Facts.error), not an exception."""
    episode, error = call.episode, ""
    try:
        async with asyncio.timeout(call.timeout_s):
            while not episode.done:
                reply = await client.chat(call.base_url, episode.messages, dict(call.sampling))
                episode.feed(reply.text)
    except CallFailed as failure:
        if failure.code == "context_length_exceeded":
            episode.stop()
        else:
            error = str(failure)
    except TimeoutError:
        error = f"episode_timeout: not over after {call.timeout_s:g} s"
    return await report(client, call, msgspec.structs.replace(episode.facts(), error=error))
