"""The built-in agent with tools: within a turn the model may call tools, and its first answer without a call counts.

messages -> model -> tool calls -> results -> model -> ... -> answer -> episode.feed -> messages -> ...
"""

import asyncio
from typing import Any

import msgspec

from rlctl.agents.call import Call, report
from rlctl.agents.client import CallFailed, Client, Reply, ToolCall
from rlctl.agents.tools.box import Box
from rlctl.config.serving import Env
from rlctl.wire.samples import Facts

Messages = list[dict[str, Any]]


class ToolUser:
    """Plays with the tools of one [[env]]."""

    def __init__(self, env: Env) -> None:
        self._most = env.max_tool_calls
        self._box = Box(env.tools, env.tool_timeout_s)

    async def play(self, client: Client, call: Call) -> Facts:
        await self._box.open()
        run, error = _Run(self._box, self._most, client, call), ""
        try:
            async with asyncio.timeout(call.timeout_s):
                await run.to_the_end()
        except CallFailed as failure:
            if failure.code == "context_length_exceeded":
                call.episode.stop()
            else:
                error = str(failure)
        except TimeoutError:
            error = f"episode_timeout: not over after {call.timeout_s:g} s"
        return await report(client, call, run.facts(error))

    async def close(self) -> None:
        await self._box.close()


class _Run:
    """One episode."""

    def __init__(self, box: Box, most: int, client: Client, call: Call) -> None:
        self._box, self._most, self._client, self._call = box, most, client, call
        self._talk: Messages = [dict(message) for message in call.episode.messages]
        self._sampling = {**call.sampling, "tools": box.specs}
        self._before: list[int] = []
        """For every answered turn, the model calls before its answer that called tools."""
        self._calls = self._failed = 0

    async def to_the_end(self) -> None:
        episode = self._call.episode
        while not episode.done:
            answer = await self._answer()
            known = len(episode.messages) + 1
            episode.feed(answer)
            self._talk += [dict(message) for message in episode.messages[known:]]

    async def _answer(self) -> str:
        """The model's next answer; past `max_tool_calls` calls in this turn, whatever it says is the answer."""
        used = rounds = 0
        while True:
            reply = await self._client.chat(self._call.base_url, self._talk, self._sampling)
            calls = reply.tool_calls
            self._talk.append(_said(reply))
            if not calls or used + len(calls) > self._most:
                self._before.append(rounds)
                return reply.text
            results = await asyncio.gather(*map(self._called, calls))
            self._talk += [
                {"role": "tool", "tool_call_id": one.id, "name": one.function.name, "content": text}
                for one, (text, _) in zip(calls, results, strict=True)
            ]
            used += len(calls)
            rounds += 1
            self._calls += len(calls)
            self._failed += sum(not worked for _, worked in results)

    async def _called(self, one: ToolCall) -> tuple[str, bool]:
        return await self._box.call(one.function.name, one.function.arguments)

    def facts(self, error: str) -> Facts:
        """The episode's, with rewards by model call: 0 for those that called tools."""
        facts = self._call.episode.facts()
        rewards: list[float] = []
        for reward, before in zip(facts.turn_rewards, self._before, strict=True):
            rewards += [0.0] * before + [reward]
        extra = {**facts.extra, "tool_calls": float(self._calls), "tool_failures": float(self._failed)}
        return msgspec.structs.replace(facts, turn_rewards=rewards, extra=extra, error=error)


def _said(reply: Reply) -> dict[str, Any]:
    """The model's message as it goes back into the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = msgspec.to_builtins(reply.tool_calls)
    return message
