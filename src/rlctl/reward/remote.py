"""JSON over HTTP to model servers, from the scoring thread: many requests at once, with retries."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp

from rlctl.errors import ConfigError
from rlctl.reward.values import Failure

Item = TypeVar("Item")
Found = TypeVar("Found")
PAUSE_S = 0.5
"""Before the first retry; doubles each time."""


class Retry(Exception):
    """The attempt failed in a way that another may not; the message says how."""


class Client:
    """One server; `each` runs `work` for every item, `workers` at a time, each up to `retries` times more."""

    def __init__(self, timeout_s: float, workers: int, retries: int, key_env: str = "") -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._workers, self._retries = workers, retries
        self._headers = {}
        if key_env:
            if not os.environ.get(key_env):
                raise ConfigError(f"the environment variable {key_env} (key_env) is not set")
            self._headers = {"Authorization": f"Bearer {os.environ[key_env]}"}

    def each(self, items: Sequence[Item], work: Callable[["Session", Item], Awaitable[Found]]) -> list[Found | Failure]:
        """Results in order; Failure `unreachable` or `no_score` where every attempt failed."""
        return asyncio.run(self._each(items, work))

    async def _each(
        self, items: Sequence[Item], work: Callable[["Session", Item], Awaitable[Found]]
    ) -> list[Found | Failure]:
        free = asyncio.Semaphore(self._workers)
        async with aiohttp.ClientSession(timeout=self._timeout, headers=self._headers) as http:

            async def one(item: Item) -> Found | Failure:
                async with free:
                    return await self._attempts(Session(http), item, work)

            return await asyncio.gather(*(one(item) for item in items))

    async def _attempts(
        self, session: "Session", item: Item, work: Callable[["Session", Item], Awaitable[Found]]
    ) -> Found | Failure:
        failure = Failure("unreachable", "")
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                return await work(session, item)
            except Retry as error:
                failure = Failure("no_score", str(error))
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = Failure("unreachable", f"{type(error).__name__}: {error}")
        return failure


class Session:
    """POST of JSON."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def post(self, url: str, body: dict[str, Any]) -> Any:
        """The decoded answer; Retry on a status that is not 2xx or on an answer that is not JSON."""
        async with self._http.post(url, json=body) as response:
            text = await response.text()
            if response.status >= 300:
                raise Retry(f"{url} answered {response.status}: {text[:300]}")
            try:
                return await response.json(content_type=None)
            except ValueError as error:
                raise Retry(f"{url} answered something else than JSON: {error}") from error
