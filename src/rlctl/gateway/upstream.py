"""Calls to the engines: keep-alive connections, another engine when one dies mid-request, health checks."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from rlctl.errors import WireError
from rlctl.gateway import engine_api
from rlctl.gateway.dialects import Sampled, Sampling
from rlctl.gateway.faults import Fault, unsupported
from rlctl.gateway.routing import Engine, Router

log = logging.getLogger(__name__)
Tell = Callable[[engine_api.Part], None]
HEALTH_EVERY_S = 2.0
CONNECT_S = 5.0
_QUEUE = re.compile(r"^(?:rlctl_engine_waiting|vllm:num_requests_waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
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


class Upstream:
    """The engines. One per process; needs a running event loop."""

    def __init__(self, urls: list[str], timeout_s: float, most_waiting: int) -> None:
        self.router = Router(urls)
        self.retries = 0
        self._timeout_s = timeout_s
        self._most_waiting = most_waiting
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def complete(
        self, uid: str, prompt_uid: str, prompt: bytes, asked: Sampling, tell: Tell | None = None
    ) -> Completion:
        """Sample; every engine is tried, and after a pause one of them again. Fault when none can.

        With `tell` the engine streams. Once something was told, another engine's answer would not continue it: the call
        then fails with its engine.
        """
        if self.router.full(time.monotonic(), self._most_waiting):
            text = f"every engine has {self._most_waiting} requests or more in its queue"
            raise Fault(429, text, "engines_full", retry_after_s=2)
        body = engine_api.body(prompt, asked, stream=tell is not None)
        told = 0

        def count(part: engine_api.Part) -> None:
            nonlocal told
            told += 1
            if tell:
                tell(part)

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
                if tell is None:
                    return await self._once(engine, uid, body)
                return await self._stream(engine, uid, body, asked.n, count)
            except Fault as fault:
                if fault.status == 400 and asked.response_format:
                    raise unsupported("response_format", str(fault)) from None
                if fault.status < 429 or told:
                    raise
                last = fault
                failed.append(engine)
        raise last or Fault(503, "no engine is serving; try again", "no_engine", retry_after_s=1)

    async def _once(self, engine: Engine, uid: str, body: bytes) -> Completion:
        async with self._asked(engine, uid, body) as response:
            data = await response.read()
            header = response.headers.get("x-policy-versions")
            return _completion(engine, engine_api.choices(data, engine.url), header)

    async def _stream(self, engine: Engine, uid: str, body: bytes, count: int, tell: Tell) -> Completion:
        async with self._asked(engine, uid, body) as response:
            assembly = engine_api.Assembly(engine.url, count)
            async for data in response.content.iter_any():
                for part in assembly.feed(data):
                    tell(part)
            if not assembly.whole:
                raise aiohttp.ClientPayloadError("the stream broke off")
            return _completion(engine, assembly.sampled(), assembly.versions)

    @asynccontextmanager
    async def _asked(self, engine: Engine, uid: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's good answer; whatever goes wrong with it is a Fault."""
        engine.running += 1
        headers = {"content-type": "application/json", "x-session-id": uid}
        try:
            async with self._http.post(f"{engine.url}/v1/completions", data=body, headers=headers) as response:
                if response.status != 200:
                    data = await response.read()
                    raise _relayed(engine, response.status, data, response.headers.get("retry-after"))
                yield response
            engine.answered()
        except Fault as fault:
            if fault.status >= 500 and fault.code != "engine_busy":
                engine.failed(time.monotonic())
            raise
        except aiohttp.ServerTimeoutError as error:
            self._down(engine, str(error))
            raise Fault(502, f"{engine.url} cannot be reached: {error}", "engine_died") from None
        except TimeoutError:
            engine.failed(time.monotonic())
            raise Fault(504, f"{engine.url} did not answer within {self._timeout_s:g} s", "engine_timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            self._down(engine, str(error) or type(error).__name__)
            raise Fault(502, f"{engine.url} died during the call: {error}", "engine_died") from None
        except WireError as error:
            engine.failed(time.monotonic())
            raise Fault(502, str(error), "engine_protocol") from None
        finally:
            engine.running -= 1

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
        limit = aiohttp.ClientTimeout(total=5.0)
        try:
            async with self._http.get(f"{engine.url}/health", timeout=limit) as response:
                healthy = response.status == 200
            async with self._http.get(f"{engine.url}/policy", timeout=limit) as response:
                if response.status == 200:
                    engine.version = _decode_policy(await response.read()).version
            async with self._http.get(f"{engine.url}/metrics", timeout=limit) as response:
                engine.waiting = _waiting(await response.text()) if response.status == 200 else 0
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._down(engine, str(error) or type(error).__name__)
            return
        except msgspec.DecodeError as error:
            log.warning("%s/policy gives no version: %s", engine.url, error)
        if healthy and not engine.up:
            engine.answered()  # it was away and is back: no need to wait for the breaker
        if healthy and not engine.serving:
            log.info("engine %s serves policy version %d", engine.url, engine.version)
        engine.up = engine.serving = healthy

    async def post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Pass a JSON body on to another service (rewards); Fault 502 when it does not answer."""
        try:
            async with self._http.post(url, data=body, headers={"content-type": "application/json"}) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Fault(502, f"{url} did not answer: {error or type(error).__name__}", "service_away") from None

    async def close(self) -> None:
        await self._http.close()


def _completion(engine: Engine, sampled: list[Sampled], header: str | None) -> Completion:
    if any(one.finish_reason == "abort" for one in sampled):
        raise Fault(503, f"{engine.url} aborted the call", "engine_aborted", retry_after_s=1)
    versions = engine_api.versions(header, [len(one.ids) for one in sampled], engine.version)
    return Completion(sampled, versions, engine.url)


def _waiting(metrics: str) -> int:
    """Length of an engine's own queue from its Prometheus text (ours, vLLM's); 0 where it does not say."""
    found = _QUEUE.findall(metrics)
    return int(sum(float(value) for value in found))


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
