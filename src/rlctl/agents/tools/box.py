"""The tools of one [[env]]: made from their names on first use, called by name, closed together."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from rlctl.agents.tools.calculator import calculator
from rlctl.agents.tools.functions import function
from rlctl.agents.tools.mcp import Server
from rlctl.agents.tools.python import python
from rlctl.agents.tools.search import search
from rlctl.agents.tools.tool import Json, Tool, ToolFailed
from rlctl.errors import ConfigError

WORKERS = 4
"""Programs of the model that run at the same time."""
GRACE_S = 5.0
"""For the sandbox to say itself that the time is over."""
LONGEST = 4000
"""Characters of a result that the model reads; longer ones say that they are cut."""


class Box:
    """`open`, `specs`, `call`, `close`."""

    def __init__(self, names: list[str], timeout_s: float) -> None:
        self._names, self._timeout_s = names, timeout_s
        self._tools: dict[str, Tool] = {}
        self._closing: list[Callable[[], object]] = []
        self._servers: list[Server] = []
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Make the tools, once; ConfigError or RlctlError where one cannot be had."""
        async with self._opening:
            if self._tools:
                return
            made = [tool for name in self._names for tool in await self._make(name)]
            names = [tool.name for tool in made]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"two tools have the same name: {', '.join(twice)}")
            self._tools = {tool.name: tool for tool in made}

    async def _make(self, name: str) -> list[Tool]:
        kind, colon, rest = name.partition(":")
        if name == "calculator":
            return [calculator()]
        if name == "python":
            tool, sandbox = await asyncio.to_thread(python, self._timeout_s, WORKERS)
            self._closing.append(sandbox.close)
            return [tool]
        if kind == "search" and colon:
            return [await asyncio.to_thread(search, Path(rest))]
        if kind == "mcp" and colon:
            server = Server(rest, self._timeout_s)
            self._servers.append(server)
            return await server.start()
        if colon:
            return [function(name)]
        raise ConfigError(f"no tool {name!r}; there are: calculator, python, search:PATH, mcp:COMMAND, module:function")

    @property
    def specs(self) -> list[Json]:
        return [tool.spec for tool in self._tools.values()]

    async def call(self, name: str, arguments: str) -> tuple[str, bool]:
        """(what the model reads, whether the call worked); `arguments` is the JSON that the model wrote."""
        try:
            async with asyncio.timeout(self._timeout_s + GRACE_S):
                text = await self._call(name, arguments)
        except TimeoutError:
            return f"error: no result after {self._timeout_s:g} s", False
        except ToolFailed as failure:
            return _cut(f"error: {failure}"), False
        return _cut(text), True

    async def _call(self, name: str, arguments: str) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool {name!r}; there are: {', '.join(self._tools)}")
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            raise ToolFailed(f"arguments are no JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolFailed("arguments are no JSON object")
        return await tool.call(given)

    async def close(self) -> None:
        for close in self._closing:
            await asyncio.to_thread(close)
        for server in self._servers:
            await server.close()


def _cut(text: str) -> str:
    over = len(text) - LONGEST
    return text if over <= 0 else f"{text[:LONGEST]}\n[... {over} more characters]"
