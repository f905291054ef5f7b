"""One gateway in this event loop, in front of a fake engine and a fake pool, all on real sockets."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes import FakeEngine, FakePool
from model import CHATML, build

from rlctl.config.learning import Model
from rlctl.config.root import Config, Run
from rlctl.config.serving import Engine, Gateway, Pool, Rollout
from rlctl.gateway.server import listen, serve
from rlctl.gateway.text import folder


class Client:
    """A bare HTTP client of the gateway."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.http = http

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> tuple[int, Any]:
        data = kwargs if "data" in kwargs else {"json": body, **kwargs}
        async with self.http.post(f"{self.url}{path}", **data) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"{self.url}{path}") as response:
            return response.status, await response.text()

    async def chat(self, uid: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """A chat completion that must succeed."""
        status, body = await self.post(f"/{uid}/p1/v1/chat/completions", {"messages": messages, **fields})
        assert status == 200, body
        return body  # type: ignore[no-any-return]


class Stack:
    """Engine, pool, gateway and a client."""

    def __init__(self, engines: list[FakeEngine], pool: FakePool, client: Client, run_dir: Path) -> None:
        self.engines, self.pool, self.client, self.run_dir = engines, pool, client, run_dir

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]


@asynccontextmanager
async def running(
    path: Path,
    template: str = CHATML,
    engines: int = 1,
    reward_url: str = "",
    context: int = 4096,
    pool_url: str = "",
    engine_urls: list[str] | None = None,
    model: Path | None = None,
    top_p: float = 1.0,
    **gateway: Any,
) -> AsyncIterator[Stack]:
    started = [await FakeEngine(seed).start() for seed in range(engines)]
    pool = await FakePool().start()
    config = Config(
        run=Run(dir=str(path)),
        model=Model(path=str(model or build(path / "model", template)), max_context=context),
        engine=Engine(urls=engine_urls or [one.url for one in started]),
        pool=Pool(url=pool_url or pool.url),
        rollout=Rollout(max_tokens=64, top_p=top_p),
        gateway=Gateway(**gateway),
    )
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    task = asyncio.create_task(serve(config, folder.read(config.model_dir), reward_url, listener))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        client = Client(url, http)
        for _ in range(200):
            if (path / "components" / "gateway.json").exists() and (await client.get("/ready"))[0] == 200:
                break
            assert not task.done(), task.exception()
            await asyncio.sleep(0.02)
        try:
            yield Stack(started, pool, client, path)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for one in started:
                await one.stop()
            await pool.stop()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running(tmp_path) as made:
        yield made


@contextmanager
def in_a_thread(path: Path, **how: Any) -> Iterator[str]:
    """A gateway in a thread of its own, for tests without an event loop: its address."""
    ready, over, address = threading.Event(), threading.Event(), []

    async def main() -> None:
        async with running(path, **how) as stack:
            address.append(stack.client.url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield address[0]
    finally:
        over.set()
        thread.join()
