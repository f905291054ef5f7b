"""The HTTP protocol with bounds on what a client may send before it has asked for anything: header bytes and time."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 65536
HEADERS_WITHIN_S = 20.0


class Guarded(HttpToolsProtocol):
    """A client whose headers are too long gets a 431, one that takes too long over them a 408."""

    _head = 0
    """Bytes since the request began, while its headers are not complete; -1 after."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head >= 0:
            self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", "the headers are too long")
        elif self._head > 0 and self._late is None:
            self._wait()

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = -1
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def _wait(self) -> None:
        self._late = self.loop.call_later(
            HEADERS_WITHIN_S, self._refuse, b"408 Request Timeout", "the headers did not come"
        )

    def _stop_waiting(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: bytes, why: str) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            body = b'{"error":{"message":"%s","type":"invalid_request_error"}}' % why.encode()
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
            self.transport.close()
