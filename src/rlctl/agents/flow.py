"""`agent = "module:Class"`: an agent of anybody's, in this process.

    class Mine:
        def __init__(self, env: Env) -> None: ...
        async def play(self, client: Client, call: Call) -> Facts | None: ...     # an episode, many at a time
        async def close(self) -> None: ...                                        # optional

`play` calls the model at `call.base_url` (with `client.chat(call.base_url, messages, call.sampling)` or any other
OpenAI client), and drives `call.episode` if it likes: `messages`, `feed(answer)`, `done`. What it returns counts; None
stands for `call.episode.facts()`. What it raises, and a time-out, make a failed episode.
"""

import asyncio
import importlib
from typing import Any

import msgspec

from rlctl.agents.call import Call, report
from rlctl.agents.client import CallFailed, Client
from rlctl.config.serving import Env
from rlctl.errors import ConfigError
from rlctl.wire.samples import Facts


def made(env: Env) -> Any:
    """The agent of `env.agent`; ConfigError where it cannot be had."""
    module, _, name = env.agent.partition(":")
    try:
        agent: Any = getattr(importlib.import_module(module), name)(env)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"agent {env.agent!r} cannot be imported: {error}") from error
    if not asyncio.iscoroutinefunction(getattr(agent, "play", None)):
        raise ConfigError(f"agent {env.agent!r} lacks `async def play(self, client, call)` (see rlctl.agents.flow)")
    return agent


class Flow:
    """Guards somebody else's agent: its mistakes are facts about an episode."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent = agent
        self._name = name

    async def play(self, client: Client, call: Call) -> Facts:
        return await report(client, call, await self._facts(client, call))

    async def _facts(self, client: Client, call: Call) -> Facts:
        try:
            async with asyncio.timeout(call.timeout_s) as limit:
                facts = await self._agent.play(client, call)
        except CallFailed as failure:
            return self._failed(call, str(failure))
        except Exception as error:  # the user's code: what it raises is a fact about this episode
            if limit.expired():
                return self._failed(call, f"episode_timeout: not over after {call.timeout_s:g} s")
            return self._failed(call, f"agent_raised: {type(error).__name__}: {error}")
        if facts is None:
            return call.episode.facts()
        if not isinstance(facts, Facts):
            return self._failed(call, f"agent_result: {self._name} returned {type(facts).__name__}, not Facts or None")
        return facts

    def _failed(self, call: Call, error: str) -> Facts:
        return msgspec.structs.replace(call.episode.facts(), error=error)

    async def close(self) -> None:
        if close := getattr(self._agent, "close", None):
            await close()
