"""A model behind a real socket that says what it was told to say, and remembers what it was asked."""

from typing import Any

from aiohttp import web


class Scripted:
    """Answers chat completions in order; a dict is a whole message, a text its content."""

    def __init__(self, *says: str | dict[str, Any]) -> None:
        self._says = list(says)
        self.asked: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Scripted":
        application = web.Application()
        application.router.add_post("/t/p/v1/chat/completions", self._chat)
        application.router.add_post("/t/p/v1/complete_trajectory", self._complete)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/t/p/v1"  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *why: object) -> None:
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        said = self._says.pop(0)
        message = said if isinstance(said, dict) else {"content": said}
        return web.json_response({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        self.ends.append(await request.json())
        return web.json_response({"status": "ok"})


def calls(*made: tuple[str, str]) -> dict[str, Any]:
    """A message that calls tools: (name, JSON arguments)."""
    return {
        "content": "",
        "tool_calls": [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(made)
        ],
    }
