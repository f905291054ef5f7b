"""uvicorn inside our own signal handling, behind our own door."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from rlctl.gateway.door.accept import Door
from rlctl.gateway.door.guard import Guarded, Owners


class Server(uvicorn.Server):
    """Cancelling `until_cancelled` is what stops it."""

    def __init__(self, app: Any, listeners: list[socket.socket], handover: Owners | None) -> None:
        """`handover`: where connections may belong instead of here."""
        protocol: Any = functools.partial(Guarded, handover=handover)
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
            )
        )
        self.listening = asyncio.Event()
        self.servers = []
        self.door = Door(listeners, self._protocol)

    def _protocol(self, first: bytes) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, first=first
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.door.open()
        self.started = True
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.door.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def until_cancelled(self) -> None:
        serving = asyncio.create_task(self.serve())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.should_exit = True
            await serving
            raise
