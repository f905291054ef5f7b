"""Calls to the engines: keep-alive connections, another engine when one dies mid-request, health checks."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from rlctl.errors import WireError
from rlctl.gateway.faults import Fault, unsupported
from rlctl.gateway.routing import engine_api
from rlctl.gateway.routing.client import Broken, Client, Reply, Unreachable
from rlctl.gateway.routing.router import PRESSED, Engine, Router
from rlctl.gateway.sampling import Part, Sampled, Sampling
from rlctl.gateway.tracing import Tracing

log = logging.getLogger(__name__)
Tell = Callable[[Part], None]
COMPLETIONS = "/v1/completions"
HEALTH_EVERY_S = 2.0
HEALTH_WITHIN_S = 5.0
_QUEUE = re.compile(r"^(?:rlctl_engine_waiting|vllm:num_requests_waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_KV = re.compile(
    r"^(?:rlctl_engine_kv_usage|vllm:(?:kv|gpu)_cache_usage_perc)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE
)
PAUSE_S = 0.2
"""Before an engine is tried a second time."""


class _Policy(msgspec.Struct):
    version: int


_decode_policy = msgspec.json.Decoder(_Policy).decode


@dataclass(frozen=True, slots=True)
class Completion:
    """What one engine answered."""

    sampled: list[Sampled]
    versions: list[engine_api.Versions]
    engine: str
    prompt: list[int] | None = None
    """Prompt ids with the images' tokens; None: there were no images."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call, as every engine that is tried gets it."""

    uid: str
    body: bytes
    choices: int
    images: int
    tell: Tell | None


class Upstream:
    """The engines. One per process; needs a running event loop."""

    def __init__(
        self, urls: list[str], timeout_s: float, most_waiting: int, most_kv: float = 1.0, tracing: Tracing | None = None
    ) -> None:
        self.router = Router(urls, min(PRESSED, most_kv))
        self.retries = 0
        self._timeout_s = timeout_s
        self._most_waiting = most_waiting
        self._most_kv = most_kv
        self._tracing = tracing
        self._client = Client()

    async def complete(
        self,
        uid: str,
        prompt_uid: str,
        prompt: bytes,
        asked: Sampling,
        tell: Tell | None = None,
        images: Sequence[bytes] = (),
    ) -> Completion:
        """Sample; every engine is tried, and after a pause one of them again. Fault when none can.

        With `tell` the engine streams. Once something was told, another engine's answer would not continue it: the call
        then fails with its engine.
        """
        if why := self.router.full(time.monotonic(), self._most_waiting, self._most_kv):
            raise Fault(429, why, "engines_full", retry_after_s=2)
        body = engine_api.body(prompt, asked, tell is not None, images)
        told = 0

        def count(part: Part) -> None:
            nonlocal told
            told += 1
            if tell:
                tell(part)

        call = _Asked(uid, body, asked.n, len(images), count if tell else None)
        failed: list[Engine] = []
        last: Fault | None = None
        for attempt in range(len(self.router.engines) + 1):
            engine = self.router.choose(uid, prompt_uid, time.monotonic(), failed)
            if engine is None:
                await asyncio.sleep(PAUSE_S)
                engine = self.router.choose(uid, prompt_uid, time.monotonic())
            if engine is None:
                break
            self.retries += attempt > 0
            try:
                return await self._asked(engine, call)
            except Fault as fault:
                if fault.status == 400 and asked.response_format:
                    raise unsupported("response_format", str(fault)) from None
                if fault.status < 429 or told:
                    raise
                last = fault
                failed.append(engine)
        raise last or Fault(503, "no engine is serving; try again", "no_engine", retry_after_s=1)

    async def _asked(self, engine: Engine, call: _Asked) -> Completion:
        """The engine's good answer; whatever goes wrong with it is a Fault."""
        engine.running += 1
        try:
            completion = await self._answered(engine, call)
        except Fault as fault:
            if fault.status >= 500 and fault.code != "engine_busy":
                engine.failed(time.monotonic())
            raise
        except TimeoutError:
            engine.failed(time.monotonic())
            raise Fault(504, f"{engine.url} did not answer within {self._timeout_s:g} s", "engine_timeout") from None
        except OSError as error:
            self._down(engine, str(error))
            what = "cannot be reached" if isinstance(error, Unreachable) else "died during the call"
            raise Fault(502, f"{engine.url} {what}: {error}", "engine_died") from None
        except WireError as error:
            engine.failed(time.monotonic())
            raise Fault(502, str(error), "engine_protocol") from None
        finally:
            engine.running -= 1
        engine.answered()
        return completion

    async def _answered(self, engine: Engine, call: _Asked) -> Completion:
        images = call.images > 0
        assembly = engine_api.Assembly(engine.url, call.choices, call.tell, images) if call.tell else None
        hear = assembly.hear if assembly else None
        headers = {"x-session-id": call.uid}
        if images:
            headers[engine_api.IMAGES] = str(call.images)
        if self._tracing is None:
            reply = await self._client.request(engine.url, COMPLETIONS, call.body, headers, self._timeout_s, hear)
        else:
            with self._tracing.engine(engine.url, headers):
                reply = await self._client.request(engine.url, COMPLETIONS, call.body, headers, self._timeout_s, hear)
        if reply.status != 200:
            raise _relayed(engine, reply.status, reply.body, reply.header(b"retry-after"))
        if images and reply.header(engine_api.IMAGES.encode()) != str(call.images):
            raise unsupported("messages", f"{engine.url} takes no images: they need vLLM, started by rlctl engine")
        if assembly is None:
            prompt = engine_api.prompt_seen(reply.body) if images else None
            sampled = engine_api.choices(reply.body, engine.url)
            return _completion(engine, sampled, reply.header(b"x-policy-versions"), prompt)
        if not assembly.whole:
            raise Broken("the stream broke off")
        return _completion(engine, assembly.sampled(), assembly.versions, assembly.prompt)

    def _down(self, engine: Engine, why: str) -> None:
        engine.failed(time.monotonic())
        if engine.up:
            log.warning("engine %s is down: %s", engine.url, why)
        engine.up = engine.serving = False

    async def watch(self) -> None:
        """Health checks until cancelled."""
        while True:
            await asyncio.gather(*(self.check(engine) for engine in self.router.engines))
            await asyncio.sleep(HEALTH_EVERY_S)

    async def check(self, engine: Engine) -> None:
        """One health check; also learns the policy version (an outside vLLM has no /policy: version 0)."""
        try:
            healthy = (await self._look(engine, "/health")).status == 200
            policy = await self._look(engine, "/policy")
            if policy.status == 200:
                engine.version = _decode_policy(policy.body).version
            metrics = await self._look(engine, "/metrics")
            text = metrics.body.decode("utf-8", "replace") if metrics.status == 200 else ""
            engine.waiting, engine.kv = _waiting(text), _kv_usage(text)
        except OSError as error:  # also TimeoutError
            self._down(engine, str(error) or type(error).__name__)
            return
        except msgspec.DecodeError as error:
            log.warning("%s/policy gives no version: %s", engine.url, error)
        if healthy and not engine.up:
            engine.answered()  # it was away and is back: no need to wait for the breaker
        if healthy and not engine.serving:
            log.info("engine %s serves policy version %d", engine.url, engine.version)
        engine.up = engine.serving = healthy

    async def _look(self, engine: Engine, target: str) -> Reply:
        return await self._client.request(engine.url, target, timeout_s=HEALTH_WITHIN_S)

    async def post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Pass a JSON body on to another service (rewards); Fault 502 when it does not answer."""
        whole = urlsplit(url)
        try:
            reply = await self._client.request(
                f"{whole.scheme}://{whole.netloc}", whole.path, body, timeout_s=self._timeout_s
            )
        except OSError as error:
            raise Fault(502, f"{url} did not answer: {error or type(error).__name__}", "service_away") from None
        return reply.status, reply.body

    async def close(self) -> None:
        self._client.close()


def _completion(
    engine: Engine, sampled: list[Sampled], header: str | None, prompt: list[int] | None = None
) -> Completion:
    if any(one.finish_reason == "abort" for one in sampled):
        raise Fault(503, f"{engine.url} aborted the call", "engine_aborted", retry_after_s=1)
    versions = engine_api.versions(header, [len(one.ids) for one in sampled], engine.version)
    return Completion(sampled, versions, engine.url, prompt)


def _waiting(metrics: str) -> int:
    """Length of an engine's own queue from its Prometheus text (ours, vLLM's); 0 where it does not say."""
    found = _QUEUE.findall(metrics)
    return int(sum(float(value) for value in found))


def _kv_usage(metrics: str) -> float:
    """Share of the KV cache in use, 0 to 1 (vLLM's name says percent and means this); the highest of several ranks."""
    return max((float(value) for value in _KV.findall(metrics)), default=0.0)


class _EngineError(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _EngineError


def _relayed(engine: Engine, status: int, data: bytes, retry_after: str | None) -> Fault:
    """An engine's error as the client's: its 4xx is a 400 with the engine's words, its 5xx a 502."""
    try:
        error = msgspec.json.decode(data, type=_ErrorBody).error
    except msgspec.DecodeError:
        error = _EngineError(data[:500].decode("utf-8", "replace"))
    text = f"{engine.url}: {error.message}"
    if status in (429, 503):
        return Fault(
            status, text, "engine_busy", retry_after_s=int(retry_after or 1) if (retry_after or "1").isdigit() else 1
        )
    if status >= 500:
        return Fault(502, text, "engine_error")
    long = "context length" in error.message or error.code == "context_length_exceeded"
    return Fault(400, text, "context_length_exceeded" if long else "engine_refused", error.param or "")
