"""`mcp:COMMAND ARGUMENT ...`: all tools of a Model Context Protocol server, a local process spoken to over stdio.

One task owns the server's connection from its start to its end, as the package mcp demands; calls come from any task.
"""

import asyncio
import logging
import shlex
from typing import Any

from rlctl.agents.tools.tool import Json, Tool, ToolFailed
from rlctl.errors import ConfigError, RlctlError

log = logging.getLogger(__name__)
START_S = 30.0


class Server:
    """One MCP server: `start`, its `tools`, `close`."""

    def __init__(self, command: str, timeout_s: float) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._session: Any = None

    async def start(self) -> list[Tool]:
        """Start the process and ask for its tools; RlctlError when it does not answer."""
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(ready))
        waited: list[asyncio.Future[Any]] = [self._task, ready]
        await asyncio.wait(waited, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return ready.result()
        why = f"does not answer within {START_S:g} s"
        if self._task.done():
            why = f"failed: {_reason(self._task.exception())}"
        await self.close()
        raise RlctlError(f"the MCP server {self._command!r} {why}")

    async def _serve(self, ready: "asyncio.Future[list[Tool]]") -> None:
        try:
            from mcp import ClientSession, StdioServerParameters
            from mcp.client.stdio import stdio_client
        except ImportError:
            raise ConfigError("tools of MCP servers need a package: pip install 'rlctl[mcp]'") from None
        program, *arguments = shlex.split(self._command)
        parameters = StdioServerParameters(command=program, args=arguments)
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            listed = await session.list_tools()
            self._session = session
            ready.set_result([self._tool(one) for one in listed.tools])
            try:
                await self._over.wait()
            finally:
                self._session = None

    def _tool(self, one: Any) -> Tool:
        async def call(arguments: Json) -> str:
            if self._session is None:
                raise ToolFailed("the server is gone")
            try:
                result = await self._session.call_tool(one.name, arguments)
            except Exception as error:  # the server's or the package's: the model reads it
                raise ToolFailed(_reason(error)) from error
            text = "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in result.content)
            if result.is_error:
                raise ToolFailed(text)
            return text

        return Tool(one.name, one.description or one.name, one.input_schema, call)

    async def close(self) -> None:
        """End the process; waits until it is gone."""
        self._over.set()
        if self._task:
            done, _ = await asyncio.wait([self._task], timeout=self._timeout_s)
            if not done:
                self._task.cancel()
                await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()):
                log.warning("the MCP server %r ended with %s", self._command, _reason(error))


def _reason(error: BaseException | None) -> str:
    """The first cause inside of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
