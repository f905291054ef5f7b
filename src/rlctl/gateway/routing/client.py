"""A lean HTTP/1.1 client: keep-alive connections to the engines and to sibling workers, no copies, no middle layers.

    Client --address--> idle connections (last used first) --one request at a time--> Connection --httptools--> Reply

About 60 µs of CPU a call, a quarter of a general client's: it follows no redirects, keeps no cookies, decodes nothing.
"""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httptools

CONNECT_S = 5.0
IDLE_S = 30.0
"""A connection that was idle for longer is not used again."""
CHUNK = 65536
"""Bodies above this are written apart from their head, without a copy."""
Hear = Callable[[bytes], None]
"""Takes the parts of a 200's body as they arrive."""


class Unreachable(ConnectionError):
    """There is no connection to the peer, so nothing was asked."""


class Broken(ConnectionError):
    """The connection ended, or what came over it was no HTTP, before the answer was whole."""


@dataclass(slots=True)
class Reply:
    """What the peer answered."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name."""
    body: bytes = b""
    """Empty where it was heard part by part."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Connection(asyncio.Protocol):
    """One connection; `ask` one thing at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Reply] | None = None
        self._reply = Reply()
        self._parts: list[bytes] = []
        self._hear: Hear | None = None
        self.transport: Any = None
        self.begun = False
        """A byte of the answer has come."""
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return not self.transport.is_closing()

    async def ask(self, head: bytes, body: bytes, timeout_s: float, hear: Hear | None = None) -> Reply:
        """Send a request; Broken, TimeoutError, or what `hear` raises: the connection is then closed."""
        self._answer = answer = self._loop.create_future()
        self._reply, self._parts, self._hear, self.begun = Reply(), [], hear, False
        late = self._loop.call_later(timeout_s, self._fail, TimeoutError())
        if len(body) > CHUNK:
            self.transport.write(head)
            self.transport.write(body)
        else:
            self.transport.write(head + body)
        try:
            return await answer
        except BaseException:
            self.transport.abort()
            raise
        finally:
            late.cancel()
            self._answer = None

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unmeasured and exc is None:
            self.on_message_complete()
        self._fail(Broken(str(exc) if exc else "the connection was closed before the answer was whole"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.transport.abort()  # nothing was asked
            return
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            failure = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fail(failure if isinstance(failure, Exception) else Broken(f"the answer is no HTTP: {error}"))
            self.transport.abort()

    # ------------------------------------------------------------ httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._hear is not None and self._reply.status == 200:
            self._hear(data)
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._reply.status < 200:  # 100 Continue and its like go before the answer
            self._reply = Reply()
            return
        self._reply.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if not self._parser.should_keep_alive():
            self.transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._reply)

    @property
    def _unmeasured(self) -> bool:
        """The answer's length is not told: it ends with the connection."""
        headers = self._reply.headers
        return bool(self._reply.status) and b"content-length" not in headers and b"transfer-encoding" not in headers


class Client:
    """Connections by address: `http://HOST:PORT`, `https://...`, or the path of a Unix socket."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = defaultdict(list)
        self._heads: dict[tuple[str, str, str], bytes] = {}

    async def request(
        self,
        address: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        hear: Hear | None = None,
        method: str = "",
    ) -> Reply:
        """GET, or with a body POST. Unreachable, Broken, TimeoutError (`timeout_s` after it was sent).

        An idle connection may be closed by the peer just when it is used; then the request goes over a new one.
        """
        head = self._head(address, target, body, headers or {}, method)
        while (connection := self._kept(address)) is not None:
            try:
                return await self._over(connection, address, head, body, timeout_s, hear)
            except Broken:
                if connection.begun:
                    raise
        return await self._over(await _connected(address), address, head, body, timeout_s, hear)

    async def _over(
        self, connection: Connection, address: str, head: bytes, body: bytes | None, timeout_s: float, hear: Hear | None
    ) -> Reply:
        reply = await connection.ask(head, body or b"", timeout_s, hear)
        if connection.usable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle[address].append(connection)
        return reply

    def _kept(self, address: str) -> Connection | None:
        idle = self._idle[address]
        latest = asyncio.get_running_loop().time() - IDLE_S
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > latest:
                return connection
            connection.transport.abort()
        return None

    def _head(self, address: str, target: str, body: bytes | None, headers: Mapping[str, str], method: str) -> bytes:
        method = method or ("GET" if body is None else "POST")
        start = self._heads.get((method, address, target))
        if start is None:
            url = urlsplit(address) if "://" in address else None
            path, host = (url.path.rstrip("/"), f"host: {url.netloc.rpartition('@')[2]}\r\n") if url else ("", "")
            start = f"{method} {path}{target} HTTP/1.1\r\n{host}".encode("latin-1")
            if len(self._heads) < 1000:
                self._heads[method, address, target] = start
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if body is not None:
            lines += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return start + lines.encode("latin-1") + b"\r\n"

    def close(self) -> None:
        """Close what is idle; a call in flight ends with its task."""
        for idle in self._idle.values():
            for connection in idle:
                connection.transport.abort()
        self._idle.clear()


async def _connected(address: str) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if "://" not in address:
                return (await loop.create_unix_connection(Connection, address))[1]
            url = urlsplit(address)
            tls = _tls() if url.scheme == "https" else None
            port = url.port or (443 if tls else 80)
            return (await loop.create_connection(Connection, url.hostname or "", port, ssl=tls))[1]
    except TimeoutError:
        raise Unreachable(f"no connection within {CONNECT_S:g} s") from None
    except OSError as error:
        raise Unreachable(str(error) or type(error).__name__) from None


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
