"""The built-in agent: plays an environment, one chat completion per turn, within its context window."""

import asyncio

import msgspec

from rlctl.agents.call import Call, report
from rlctl.agents.client import CallFailed, Client
from rlctl.agents.window import Window
from rlctl.config.serving import Env
from rlctl.wire.samples import Facts


class Chat:
    """Plays one [[env]]."""

    def __init__(self, env: Env) -> None:
        self._env = env

    async def play(self, client: Client, call: Call) -> Facts:
        return await play(self._env, client, call)

    async def close(self) -> None:
        """Nothing was started."""


async def play(env: Env, client: Client, call: Call) -> Facts:
    """Run the episode to its end and report it to the gateway; a failure is data (Facts.error), not an exception."""
    episode, error, sampling = call.episode, "", dict(call.sampling)
    window = Window(env.context, env.context_turns, opening=env.style != "compact")
    try:
        async with asyncio.timeout(call.timeout_s):
            while not episode.done:
                if request := window.request(episode.messages):
                    reply = await client.chat(call.base_url, request, sampling)
                    window.summarized(episode.messages, reply.text)
                reply = await client.chat(call.base_url, window.shown(episode.messages), sampling)
                episode.feed(reply.text)
    except CallFailed as failure:
        if failure.code == "context_length_exceeded":
            episode.stop()
        else:
            error = str(failure)
    except TimeoutError:
        error = f"episode_timeout: not over after {call.timeout_s:g} s"
    facts = episode.facts()
    turn_rewards = window.rewards(facts.turn_rewards)
    return await report(client, call, msgspec.structs.replace(facts, turn_rewards=turn_rewards, error=error))
