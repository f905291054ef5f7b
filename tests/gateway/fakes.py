"""Real servers with simple insides: an engine that samples pseudo-random ids, a pool that keeps what it is sent."""

import asyncio
import json
import random
from collections import defaultdict
from typing import Any

from aiohttp import web
from model import tokenizer

from rlctl.wire.messages import (
    CompleteTrajectory,
    Done,
    Feedback,
    GetOpenSteps,
    GetStatistics,
    OpenSteps,
    Refused,
    Statistics,
    SubmitSteps,
)
from rlctl.wire.samples import Step
from rlctl.wire.sockets import Answer

END = tokenizer().token_to_id("<|im_end|>")


class FakeEngine:
    """POST /v1/completions over HTTP. What it was asked and what it answered is kept."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.script: list[str] = []
        """Texts to answer with, first come first served; then random ids."""
        self.calls: list[dict[str, Any]] = []
        """{"prompt", "responses", "logprobs", "versions", "session"} of every answer."""
        self.headers: list[Any] = []
        """Of every call."""
        self.delay_s = 0.0
        self.pause_s = 0.0
        """Between the chunks of a stream."""
        self.status = 200
        self.version: int | None = 3
        self.die = 0
        """Calls to cut the connection of."""
        self.waiting = 0
        self.kv = 0.0
        self.formats = False
        """Whether it can constrain its sampling."""
        self.cut = 0
        """Streams to break off after the first chunks."""
        self.image: tuple[int, list[int]] | None = None
        """It takes images: (placeholder, what it puts in its place)."""
        self.url = ""

    async def start(self, port: int = 0) -> "FakeEngine":
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/health", self.health)
        app.router.add_get("/policy", self.policy)
        app.router.add_get("/metrics", self.metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        waiting = f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}.0\n'
        return web.Response(text=waiting + f'vllm:kv_cache_usage_perc{{engine="0"}} {self.kv}\n')

    async def policy(self, request: web.Request) -> web.Response:
        if self.version is None:
            return web.Response(status=404)
        return web.json_response({"version": self.version, "checksum": "", "path": ""})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.headers.append(request.headers)
        await asyncio.sleep(self.delay_s)
        if self.die:
            self.die -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if "response_format" in asked and not self.formats:
            error = {"message": "Object contains unknown field `response_format`", "code": "invalid_request"}
            return web.json_response({"error": error}, status=400)
        if self.status != 200:
            return web.json_response({"error": {"message": "the engine says no", "code": None}}, status=self.status)
        shown = {}
        if self.image and "X-Rlctl-Images" in request.headers:
            asked["prompt"] = self._expanded(asked["prompt"], len(asked["images"]))
            shown = {"X-Rlctl-Images": request.headers["X-Rlctl-Images"]}
        choices, versions = [], []
        for index in range(asked.get("n", 1)):
            ids, reason = self._sample(asked["max_tokens"])
            logprobs = [round(-self.random.random() * 5, 4) for _ in ids]
            text = tokenizer().decode(ids, skip_special_tokens=True)
            choices.append(
                {"index": index, "text": text, "token_ids": ids, "finish_reason": reason,
                 "logprobs": {"token_logprobs": logprobs}, "prompt_token_ids": asked["prompt"]}
            )  # fmt: skip
            cut = self.random.randint(0, len(ids))
            versions.append([(v, n) for v, n in ((3, cut), (4, len(ids) - cut)) if n])
        self.calls.append(
            {"prompt": asked["prompt"], "asked": asked, "session": request.headers.get("X-Session-Id"),
             "responses": [c["token_ids"] for c in choices], "versions": versions,
             "logprobs": [c["logprobs"]["token_logprobs"] for c in choices]}
        )  # fmt: skip
        header = ";".join(",".join(f"{v}:{n}" for v, n in one) for one in versions)
        if asked.get("stream"):
            return await self._stream(request, choices, header, shown)
        headers = shown | ({"X-Policy-Versions": header} if self.version is not None else {})
        usage = {"prompt_tokens": len(asked["prompt"])}
        return web.json_response({"object": "text_completion", "choices": choices, "usage": usage}, headers=headers)

    def _expanded(self, prompt: list[int], images: int) -> list[int]:
        """The first `images` placeholders replaced, as vLLM does."""
        assert self.image
        ids: list[int] = []
        for token in prompt:
            replaced = token == self.image[0] and images > 0
            ids += self.image[1] if replaced else [token]
            images -= replaced
        return ids

    async def _stream(
        self, request: web.Request, choices: list[dict[str, Any]], header: str, shown: dict[str, str]
    ) -> web.StreamResponse:
        """One to three tokens a chunk, the choices by turns, as vLLM; half a character waits."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **shown})
        await response.prepare(request)

        async def send(value: Any) -> None:
            await response.write(
                b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
            )

        at, told = [0] * len(choices), [0] * len(choices)
        while any(at[i] < len(one["token_ids"]) for i, one in enumerate(choices)):
            for i, one in enumerate(choices):
                start, end = at[i], min(at[i] + self.random.randint(1, 3), len(one["token_ids"]))
                if start == end:
                    continue
                last = end == len(one["token_ids"])
                text = tokenizer().decode(one["token_ids"][:end], skip_special_tokens=True)
                safe = len(text) if last else len(text.rstrip("\ufffd"))
                part = {"index": i, "text": text[told[i] : safe], "token_ids": one["token_ids"][start:end],
                        "logprobs": {"token_logprobs": one["logprobs"]["token_logprobs"][start:end]},
                        "finish_reason": one["finish_reason"] if last else None}  # fmt: skip
                if start == 0:
                    part["prompt_token_ids"] = one["prompt_token_ids"]
                at[i], told[i] = end, max(told[i], safe)
                await send({"choices": [part]})
                await asyncio.sleep(self.pause_s)
            if self.cut:
                self.cut -= 1
                assert request.transport is not None
                request.transport.abort()
                return response
        if self.version is not None:
            await send({"choices": [], "policy_versions": header})
        await send(b"[DONE]")
        return response

    def _sample(self, max_tokens: int) -> tuple[list[int], str]:
        if self.script:
            ids = [*tokenizer().encode(self.script.pop(0)).ids, END]
        else:
            length = self.random.choice([0, 1, 2, 5, 12])
            ids = [self.random.randrange(tokenizer().get_vocab_size() - 3) for _ in range(length)] + [END]
        return (ids, "stop") if len(ids) <= max_tokens else (ids[:max_tokens], "length")


class FakePool:
    """Keeps Steps by (trajectory, index) as the pool does."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[int, Step]] = defaultdict(dict)
        self.ends: dict[str, CompleteTrajectory] = {}
        self.opened: set[str] = set()
        """Trajectories that an OpenGroup has named."""
        self.duplicates = 0
        self.messages = 0
        self.delay_s = 0.0
        self.refuse = ""
        self.feedback: Any = None
        """Coroutine function that answers Feedback."""
        self.url = ""

    async def start(self, port: int = 0) -> "FakePool":
        self._answer = Answer("127.0.0.1", port)
        self.url, self.port = self._answer.url, self._answer.port
        self._task = asyncio.create_task(self._answer.serve(self.handle))
        return self

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._answer.close()

    async def handle(self, request: Any) -> Any:
        self.messages += 1
        match request:
            case SubmitSteps(steps):
                await asyncio.sleep(self.delay_s)
                if self.refuse and any(self.refuse == step.trajectory_uid for step in steps):
                    return Refused("not this one")
                fresh = [s for s in steps if s.step_index not in self.steps[s.trajectory_uid]]
                for step in fresh:
                    self.steps[step.trajectory_uid][step.step_index] = step
                self.duplicates += len(steps) - len(fresh)
                return Done(accepted=len(fresh), duplicate=len(steps) - len(fresh))
            case CompleteTrajectory(uid, only_known=True) if uid not in self.opened:
                return Refused(f"no trajectory {uid} here")
            case CompleteTrajectory(uid):
                self.ends.setdefault(uid, request)
                return Done(accepted=1)
            case GetOpenSteps():
                alive = {uid: steps for uid, steps in self.steps.items() if steps and uid not in self.ends}
                return OpenSteps({uid: (len(steps), max(steps) + 1) for uid, steps in alive.items()})
            case GetStatistics():
                return Statistics()
            case Feedback() if self.feedback:
                return await self.feedback(request)
        return Refused(f"no {type(request).__name__} here")
