"""The ASGI application: path -> route, faults -> responses, counts.

POST /init_trajectory                          POST /{traj}/{prompt}/v1/register_trajectory, complete_trajectory
POST /generate  /submit_steps  /compute_reward
POST /engines  /feedback
                                               POST /{traj}/{prompt}/v1/chat/completions, completions, responses
GET  /health  /ready  /metrics  /openapi.json  POST /{traj}/{prompt}/v1/messages, messages/count_tokens
GET  /sibling-numbers (between workers)
                                               GET  /{traj}/{prompt}/v1/models

A session key may stand below the prompt: /{traj}/{prompt}/sk-.../v1/...
Below the prompt `v1` may be missing or stand there twice: OpenAI's clients add nothing to a base_url, Anthropic's v1.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from rlctl.config.serving import Gateway
from rlctl.errors import RlctlError
from rlctl.gateway import report
from rlctl.gateway.calls import Calls
from rlctl.gateway.door.http import TEXT, Receive, Request, Response, Send, answer, failed, read_body, write
from rlctl.gateway.door.keys import PREFIX, Keys
from rlctl.gateway.faults import Fault, bad
from rlctl.gateway.routes import openapi
from rlctl.gateway.routes.episodes import UID, EpisodeRoutes
from rlctl.gateway.routes.feedback import FeedbackRoute
from rlctl.gateway.routes.model import ModelRoutes
from rlctl.gateway.tracing import Tracing
from rlctl.gateway.workers.siblings import NUMBERS, Siblings, from_sibling
from rlctl.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class Rows(Protocol):
    """Where rows of numbers go: a file (Metrics), or the parent of several workers."""

    def write(self, **values: Any) -> None: ...
    def close(self) -> None: ...


Route = Callable[[Request], Awaitable[Response]]
UNTRACED = {"/health", "/ready", "/metrics", NUMBERS}
"""Asked every few seconds by machines."""


class App:
    """Raw ASGI: about 20 µs a request before the route begins."""

    def __init__(
        self,
        calls: Calls,
        models: ModelRoutes,
        episodes: EpisodeRoutes,
        keys: Keys,
        settings: Gateway,
        access: Metrics | None,
        siblings: Siblings,
        tracing: Tracing | None = None,
    ) -> None:
        self.calls = calls
        self.keys = keys
        self.access = access
        self.siblings = siblings
        self.tracing = tracing
        self.worker = siblings.worker
        self.document = msgspec.json.encode(openapi.document())
        self.max_body_bytes = settings.max_body_bytes
        self.body_timeout_s = settings.body_timeout_s
        self.fixed: dict[str, tuple[str, Route]] = {
            "/init_trajectory": ("POST", episodes.init),
            "/engines": ("POST", episodes.engines),
            "/generate": ("POST", episodes.generate),
            "/submit_steps": ("POST", episodes.submit_steps),
            "/compute_reward": ("POST", episodes.compute_reward),
            "/feedback": ("POST", FeedbackRoute(calls.recorder).give),
            "/health": ("GET", self.health),
            "/ready": ("GET", self.ready),
            "/metrics": ("GET", self.metrics),
            NUMBERS: ("GET", self.numbers),
            "/openapi.json": ("GET", self.openapi),
        }
        self.based: dict[str, tuple[str, Route]] = {
            "chat/completions": ("POST", models.chat),
            "completions": ("POST", models.completions),
            "responses": ("POST", models.responses),
            "messages": ("POST", models.messages),
            "messages/count_tokens": ("POST", models.count_tokens),
            "models": ("GET", models.models),
            "register_trajectory": ("POST", episodes.register),
            "complete_trajectory": ("POST", episodes.complete),
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RlctlError(f"the gateway speaks HTTP, not {scope['type']}")
        if self.tracing is None or scope["path"] in UNTRACED:
            await self._answer(scope, receive, send)
            return
        with self.tracing.request(scope) as span:
            name, status, uid = await self._answer(scope, receive, send)
            self.tracing.answered(span, scope["method"], name, status, uid)

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> tuple[str, int, str]:
        """Answer it: (route, status, trajectory)."""
        started, uid, body = time.perf_counter(), "", b""
        name = "messages" if scope["path"].endswith(("/messages", "/count_tokens")) else "unknown"
        try:
            name, route, uid, prompt_uid = self._find(scope)
            body = await read_body(scope, receive, self.max_body_bytes, self.body_timeout_s)
            response = await route(Request(scope, body, receive, uid, prompt_uid))
        except Fault as fault:
            response = failed(fault, name.startswith("messages"))
        except RecursionError:
            response = failed(bad("the body is nested too deeply", code="invalid_json"), name.startswith("messages"))
        except Exception:
            log.exception("%s %s", scope["method"], name)
            response = failed(Fault(500, "the gateway failed; its log says why", "internal_error"))
        self.calls.counts.requests[name, response.status] += 1
        await write(send, response)
        if self.access is not None:
            self.access.write(
                route=name,
                status=response.status,
                uid=uid,
                ms=round((time.perf_counter() - started) * 1000, 2),
                bytes_in=len(body),
                bytes_out=len(response.body),
                stream=response.events is not None,
            )
        return name, response.status, uid

    def _find(self, scope: dict[str, Any]) -> tuple[str, Route, str, str]:
        """Name of the route, the route, trajectory and prompt of the path; Fault 404 or 405."""
        path, uid, prompt_uid, key = scope["path"], "", "", ""
        found = self.fixed.get(path)
        if found is None:
            parts = path.split("/", 3)
            if len(parts) == 4 and UID.fullmatch(parts[1]) and UID.fullmatch(parts[2]) and parts[2] != "v1":
                _, uid, prompt_uid, path = parts
                if path.startswith(PREFIX):
                    key, _, path = path.partition("/")
                path = path.removeprefix("v1/").removeprefix("v1/")
                found = self.based.get(path)
        if found is None:
            raise Fault(404, f"no such path: {scope['path'][:200]}", "not_found")
        if path == NUMBERS and not from_sibling(scope):
            raise Fault(404, f"no such path: {path}", "not_found")
        if path != "/health" and not from_sibling(scope):
            self.keys.check(scope["headers"], key, uid, prompt_uid)
        if uid and not self.worker.owns(uid):  # only pipelining gets here: the connection could not move in between
            raise Fault(421, f"trajectory {uid} is served on a connection of its own", "misdirected_request")
        method, route = found
        if scope["method"] != method:
            raise Fault(
                405, f"{scope['path']} takes {method}, not {scope['method']}", "method_not_allowed", allow=method
            )
        return path, route, uid, prompt_uid

    async def health(self, request: Request) -> Response:
        return answer({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when the tokenizer is loaded (it is, once we listen), the pool answers and an engine serves."""
        parts = {
            "tokenizer": True,
            "pool": await self.calls.recorder.answers(),
            "engine": any(engine.serving for engine in self.calls.upstream.router.engines),
        }
        if self.worker.count > 1 and not from_sibling(request.scope):
            others = await self.siblings.each("/ready")
            parts["workers"] = all(reply is not None and reply.status == 200 for reply in others)
        engines = [
            {"url": e.url, "up": e.serving, "policy_version": e.version} for e in self.calls.upstream.router.engines
        ]
        ready = all(parts.values())
        return answer({"ready": ready, **parts, "engines": engines}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        others = await self.siblings.each(NUMBERS)
        rows = [report.numbers(self.calls), *(report.decode(one.body) for one in others if one is not None)]
        return Response(report.prometheus(report.merged(rows)), kind=TEXT)

    async def numbers(self, request: Request) -> Response:
        return answer(report.numbers(self.calls))

    async def openapi(self, request: Request) -> Response:
        return Response(self.document)


async def write_rows(calls: Calls, metrics: Rows, every_s: float) -> None:
    """A row every `every_s`, and one at the end."""
    started = time.monotonic()
    try:
        while True:
            await asyncio.sleep(every_s)
            metrics.write(**report.row(calls), up_s=round(time.monotonic() - started, 1))
    finally:
        metrics.write(**report.row(calls), up_s=round(time.monotonic() - started, 1))
        metrics.close()
