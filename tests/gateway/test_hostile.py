"""A gateway process of its own under hostile clients, round after round: clear 4xx, no 5xx, no memory kept."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import psutil
import pytest
from fakes import FakeEngine, FakePool
from model import build

from tests.e2e.parts import component

CHAT = "/h/p/v1/chat/completions"
POSTS = (
    CHAT,
    "/h/p/v1/completions",
    "/h/p/v1/responses",
    "/h/p/v1/messages",
    "/h/p/v1/messages/count_tokens",
    "/h/p/v1/register_trajectory",
    "/h/p/v1/complete_trajectory",
    "/init_trajectory",
    "/generate",
    "/submit_steps",
    "/feedback",
    "/engines",
)
SAY = b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8%s}'
DEEP = 10_000
NO_JSON = (
    b'{"messages": [{"role": "user", "content": "\xff\xfe\x80"}], "prompt": "\xc3\x28", "input": "\xed\xa0\x80"}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}], "prompt": "\\udfff", "input": "\\ud800x"}',
    b'{"a": ' * DEEP + b"1" + b"}" * DEEP,
    b"[" * DEEP + b"]" * DEEP,
    b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b"\x1f\x8b\x08\x00" + b"\x00" * 100,
    b"\x00" * 1000,
    b'{"messages": NaN}',
    b'{"messages"',
    b"null",
    b'"',
    bytes(range(256)),
)
PATHS = (
    "/../../../etc/passwd",
    "/t/p/v1/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/v1/models",
    "/t/%2e%2e/v1/chat/completions",
    "/t%2f..%2f..%2fetc/p/v1/models",
    "/t%00/p/v1/models",
    "/t/p%0d%0ax-evil:1/v1/models",
    "/-t/p/v1/models",
    "/.t/p/v1/models",
    "/t/p/v1/v1/v1/models",
    "//t/p/v1/models",
    "/t/p//v1/models",
    "/t/p/v1/models/",
    "/t/p/v1/models%2f",
    "/t/p;a=b/v1/models",
    "/t" * 5000,
    "/" + "t" * 129 + "/p/v1/models",
    "/%F0%9F%99%82/p/v1/models",
    "/t/p/sk-/v1/../v1/chat/completions",
    "/sibling/numbers",
)


class Gateway:
    """The process, and raw connections to it."""

    def __init__(self, url: str, engine: FakeEngine, pool: FakePool, http: aiohttp.ClientSession) -> None:
        self.url, self.engine, self.pool, self.http = url, engine, pool, http
        self.port = int(url.rpartition(":")[2])
        (self.process,) = (
            psutil.Process(one.pid)
            for one in psutil.net_connections("tcp")
            if one.status == "LISTEN" and one.laddr.port == self.port and one.pid
        )

    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    async def post(self, path: str, data: bytes) -> int:
        async with self.http.post(self.url + path, data=data) as response:
            await response.read()
            return response.status

    async def metrics(self) -> str:
        async with self.http.get(self.url + "/metrics") as response:
            return await response.text()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes, half_close: bool = False) -> bytes:
        """What comes back for these bytes until the gateway closes, or for half a second."""
        reader, writer = await self.connect()
        writer.write(data)
        if half_close:
            writer.write_eof()
        answer = b""
        try:
            async with asyncio.timeout(0.5):
                while piece := await reader.read(65536):
                    answer += piece
        except (TimeoutError, ConnectionResetError):
            pass  # it was kept open, or cut off: both may be
        writer.close()
        return answer


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    engine, pool = await FakeEngine().start(), await FakePool().start()
    model = {"path": str(build(tmp_path / "model")), "max_context": 4096}
    sections = {"model": model, "engine": {"urls": [engine.url]}, "pool": {"url": pool.url},
                "rollout": {"max_tokens": 64}}  # fmt: skip
    with ExitStack() as stack:
        started = component("gateway", "gateway", tmp_path / "run", sections)
        url = await asyncio.to_thread(stack.enter_context, started)
        async with aiohttp.ClientSession() as http:
            yield Gateway(url, engine, pool, http)
        await asyncio.to_thread(stack.close)
    await engine.stop()
    await pool.stop()


def request(path: str, body: bytes, more: bytes = b"", method: bytes = b"POST") -> bytes:
    head = method + b" " + path.encode() + b" HTTP/1.1\r\nhost: x\r\n" + more
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def refused(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 4")


async def bodies(gateway: Gateway) -> None:
    for path in POSTS:
        for body in NO_JSON:
            status = await gateway.post(path, body)
            assert status in (400, 404), (path, body[:60], status)


async def paths(gateway: Gateway) -> None:
    for path in PATHS:
        for method in (b"GET", b"POST"):
            answer = await gateway.raw(request(path, b"", b"connection: close\r\n", method))
            assert refused(answer), (path, answer[:100])
    for method in (b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD", b"TRACE", b"CONNECT", b"FROB"):
        answer = await gateway.raw(request(CHAT, b"", b"connection: close\r\n", method))
        assert refused(answer), (method, answer[:100])


async def heads(gateway: Gateway) -> None:
    """Strange, long and doubled headers; an upgrade nobody offers."""
    body = SAY % b""
    for more, wanted in (
        (b"x: " + b"y" * 600_000 + b"\r\n", b"431"),
        (b"x: y\r\n" * 100_000, b"431"),
        (b"content-length: 5\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n", b"400"),
        (b"x y: z\r\n", b"400"),
        (b"\x00: z\r\n", b"400"),
    ):
        answer = await gateway.raw(request(CHAT, body, more))
        assert answer.split(b" ")[1] == wanted, (more[:40], answer[:100])
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n"
    assert b" 101 " not in (await gateway.raw(request("/t/p/v1/models", b"", upgrade, b"GET")))[:20]


async def too_long(gateway: Gateway) -> None:
    """Announced: refused at once. In chunks: read up to the bound."""
    head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\n"
    assert b" 413 " in (await gateway.raw(head + b"content-length: 100000000\r\n\r\n"))[:20]
    reader, writer = await gateway.connect()
    writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
    try:
        for _ in range(18):
            writer.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass  # cut off, as it may be
    assert b" 413 " in (await reader.read(4096))[:20]
    writer.close()


async def half_closed(gateway: Gateway) -> None:
    """The client closes its side: in the head, in the body, after the request, during the stream."""
    whole = request("/half/p/v1/chat/completions", SAY % b"")
    for data in (
        b"",
        whole[:20],
        whole[:-10],
        whole,
        request("/half/p/v1/chat/completions", SAY % b', "stream": true'),
    ):
        answer = await gateway.raw(data, half_close=True)
        assert not answer or answer.split(b" ")[1][:1] in (b"2", b"4"), answer[:100]


async def cut_off(gateway: Gateway) -> None:
    """A reset in the body, and in the answer; a client that asks for a stream and reads nothing of it."""
    for data in (request(CHAT, SAY % b"")[:-20], request("/half/p/v1/chat/completions", SAY % b', "stream": true')):
        reader, writer = await gateway.connect()
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        del reader


async def round_of_all(gateway: Gateway) -> None:
    for attack in (bodies, paths, heads, too_long, half_closed, cut_off):
        await attack(gateway)
    assert await gateway.post("/half/p/v1/complete_trajectory", b"{}") in (200, 404, 409)


@pytest.mark.parametrize("attack", [bodies, paths, heads, too_long, half_closed, cut_off])
async def test_the_client_is_at_fault_and_the_gateway_goes_on(gateway: Gateway, attack) -> None:
    await attack(gateway)
    assert await gateway.post("/good/p/v1/chat/completions", SAY % b"") == 200
    for _ in range(200):
        if "rlctl_gateway_unacknowledged 0" in (text := await gateway.metrics()):
            break
        await asyncio.sleep(0.05)
    assert "rlctl_gateway_unacknowledged 0" in text
    assert 'status="5' not in text


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_rounds_of_hostile_requests_leave_no_memory_behind(gateway: Gateway) -> None:
    for _ in range(3):
        await round_of_all(gateway)
    before = gateway.memory()
    for _ in range(10):
        await round_of_all(gateway)
    assert gateway.memory() - before < 4_000_000
    text = await gateway.metrics()
    sessions = next(line for line in text.splitlines() if line.startswith("rlctl_gateway_sessions "))
    assert float(sessions.split()[1]) <= 2, "refused requests open no trajectory"
    assert json.dumps(text).count('status=\\"5') == 0
