"""The trivial engine: answers every completion at once, with a number nobody was answered before."""

from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer


class Upstream:
    """`POST /v1/completions` as vLLM's; the n-th answer is the text "n" and an end token."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id("<|im_end|>")
        self.answers: dict[int, list[int]] = {}
        """Number -> the ids it was answered with."""
        self.url = ""

    async def start(self) -> "Upstream":
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/health", self._health)
        app.router.add_get("/policy", self._policy)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response()

    async def _policy(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"version": 0, "checksum": "", "path": ""})

    async def _complete(self, request: web.Request) -> web.Response:
        asked: dict[str, Any] = await request.json()
        number = len(self.answers) + 1
        ids = self.answers[number] = [*self._tokenizer.encode(str(number)).ids, self._end]
        choice = {
            "index": 0,
            "text": str(number),
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
        }
        body = {"object": "text_completion", "choices": [choice], "usage": {"prompt_tokens": len(asked["prompt"])}}
        return web.json_response(body, headers={"X-Policy-Versions": f"0:{len(ids)}"})
