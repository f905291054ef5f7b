"""The client to the engines, against a server that writes its answers byte by byte."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rlctl.gateway.routing.client import Broken, Client, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"


class Server:
    """Answers the n-th request with the n-th script; None closes without a word."""

    def __init__(self) -> None:
        self.scripts: list[bytes | None] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.close_after = False

    async def start(self) -> "Server":
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                script = self.scripts.pop(0)
                if script is None:
                    return
                for byte in script:
                    writer.write(bytes([byte]))
                    await writer.drain()
                if self.close_after:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def stop(self) -> None:
        self._server.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = await Server().start()
    yield one
    await one.stop()


async def test_a_connection_is_used_again_and_the_request_is_whole(server: Server) -> None:
    client, server.scripts = Client(), [OK, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, OK]
    for body in (b"{}", b"x" * 100_000):
        reply = await client.request(server.url, "/v1/completions", body, {"x-session-id": "t1"})
        assert (reply.status, reply.body, reply.header(b"x-a"), reply.header(b"x-b")) == (200, b"hi", "b", None)
    assert (await client.request(server.url + "/base", "/health")).body == b"hi"
    assert server.connections == 2, "one per address"
    host = server.url.removeprefix("http://")
    assert (
        server.requests[0]
        == (
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nx-session-id: t1\r\n"
            "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        ).encode()
    )
    assert server.requests[1].endswith(b"\r\n\r\n" + b"x" * 100_000)
    assert server.requests[2].startswith(b"GET /base/health HTTP/1.1\r\n")
    client.close()


async def test_a_connection_closed_while_idle_costs_nothing_but_a_new_one_that_says_nothing_is_broken(
    server: Server,
) -> None:
    client, server.scripts = Client(), [OK, None, OK, None, None]
    for _ in range(2):
        assert (await client.request(server.url, "/", b"")).body == b"hi"
    assert server.connections == 2
    with pytest.raises(Broken):
        await client.request(server.url, "/", b"")
    client.close()


async def test_parts_are_heard_as_they_come_only_of_a_good_answer(server: Server) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    client, server.scripts = Client(), [chunked, b"HTTP/1.1 429 No\r\nContent-Length: 2\r\n\r\nno", OK]
    heard: list[bytes] = []
    assert (await client.request(server.url, "/", b"", hear=heard.append)).body == b""
    assert b"".join(heard) == b"hello" and len(heard) > 1
    refused = await client.request(server.url, "/", b"", hear=heard.append)
    assert (refused.status, refused.body, b"".join(heard)) == (429, b"no", b"hello")

    def choke(data: bytes) -> None:
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        await client.request(server.url, "/", b"", hear=choke)
    client.close()


async def test_an_answer_without_a_length_ends_with_its_connection_and_a_cut_one_is_broken(server: Server) -> None:
    server.close_after = True
    client, server.scripts = Client(), [b"HTTP/1.1 200 OK\r\n\r\nall of it", OK[:-1], b"SSH-2.0\r\n", OK[:9]]
    assert (await client.request(server.url, "/", b"")).body == b"all of it"
    for _ in range(3):
        with pytest.raises(Broken):
            await client.request(server.url, "/", b"")
    client.close()


async def test_nobody_there_is_unreachable_and_silence_a_timeout(server: Server) -> None:
    client, server.scripts = Client(), [b"HTTP/1.1 200 OK\r\n"]
    with pytest.raises(TimeoutError):
        await client.request(server.url, "/", b"", timeout_s=0.1)
    for address in ("http://127.0.0.1:9", "/no/such.sock"):
        with pytest.raises(Unreachable):
            await client.request(address, "/")
    client.close()
