"""The HTTP protocol with bounds on what a client may send before it has asked for anything: header bytes and time.

With several workers a connection whose next request names another worker's trajectory goes there (workers/handover.py).
"""

import asyncio
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 65536
HEADERS_WITHIN_S = 20.0
LONGEST = 1024
"""Bytes in which a request must have named its trajectory."""


class Owners(Protocol):
    """Where a connection may belong instead of here (workers.handover.Handover)."""

    def elsewhere(self, uid: str) -> bool: ...
    def give(self, uid: str, transport: Any, data: bytes) -> None: ...


def named(data: bytes) -> str | None:
    """Trajectory in the first bytes of a request, '' when it names none, None when more bytes are needed.

    >>> named(b"POST /t1/p1/v1/chat/completions HTTP/1.1"), named(b"GET /ready HTTP/1.1"), named(b"POST /t")
    ('t1', '', None)
    """
    start = data.find(b" ", 0, 16)
    if start < 0:
        return None if len(data) < 16 else ""
    if data[start + 1 : start + 2] not in (b"/", b""):
        return ""
    slash, space = data.find(b"/", start + 2, LONGEST), data.find(b" ", start + 1, LONGEST)
    if slash >= 0 and (space < 0 or slash < space):
        uid = data[start + 2 : slash]
        return (unquote_to_bytes(uid) if b"%" in uid else uid).decode("utf-8", "replace")
    return None if space < 0 and b"\n" not in data and len(data) < LONGEST else ""


class Guarded(HttpToolsProtocol):
    """A client whose headers are too long gets a 431, one that takes too long over them a 408."""

    _head = 0
    """Bytes since the request began, while its headers are not complete; -1 after."""
    _late: asyncio.TimerHandle | None = None
    _between = True
    """Nothing of a next request has been parsed."""

    def __init__(self, *args: Any, handover: Owners | None = None, first: bytes = b"", **kwargs: Any) -> None:
        """`first`: what another worker has already read of this connection."""
        super().__init__(*args, **kwargs)
        self._handover = handover
        self._held = first

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if self._held:
            first, self._held = self._held, b""
            self.data_received(first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._handover is not None and self._between and (self.cycle is None or self.cycle.response_complete):
            data = self._held + data
            uid = named(data)
            self._held = data if uid is None else b""
            if uid is None:
                if self._late is None:
                    self._wait()
                return
            if uid and self._handover.elsewhere(uid):
                self._stop_waiting()
                self._unset_keepalive_if_required()
                self._handover.give(uid, self.transport, data)
                return
            self._between = False
        if self._head >= 0:
            self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEADER_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", "the headers are too long")
        elif self._head > 0 and self._late is None:
            self._wait()

    def on_message_begin(self) -> None:
        self._head = 0
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = -1
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        self._between = True
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
