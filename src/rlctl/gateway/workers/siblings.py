"""What workers ask one another, by HTTP over their Unix sockets: a request for the owner of the trajectory in its body,
each other's numbers, the change of engines that one of them was told.
"""

import asyncio
from typing import Any

from rlctl.gateway import report
from rlctl.gateway.door.http import Request, Response
from rlctl.gateway.faults import Fault
from rlctl.gateway.routing.client import Client, Reply
from rlctl.gateway.workers.worker import Worker

ANSWER_S = 2.0
"""A sibling that does not answer within this is left out of sums; it is being restarted."""
NUMBERS = "/sibling-numbers"
PASSED = (b"host", b"x-forwarded-proto")
"""Headers that the owner needs; keys were checked here."""


def from_sibling(scope: dict[str, Any]) -> bool:
    """Whether the request came over this worker's Unix socket, which only siblings can open."""
    server = scope.get("server")
    return server is not None and server[1] is None


class Siblings:
    """The other workers."""

    def __init__(self, worker: Worker, timeout_s: float) -> None:
        self.worker = worker
        self._timeout_s = timeout_s
        self._client = Client()

    @property
    def others(self) -> list[str]:
        """Their addresses."""
        return [address for i, address in enumerate(self.worker.addresses) if i != self.worker.index]

    async def pass_on(self, uid: str, request: Request, body: bytes | None = None) -> Response:
        """The answer of the worker that owns `uid` to this request (or to `body` in its place)."""
        address = self.worker.addresses[self.worker.owner(uid)]
        query = request.scope.get("query_string", b"").decode("latin-1")
        target = request.scope["path"] + (f"?{query}" if query else "")
        headers = {name.decode(): value.decode("latin-1") for name, value in request.scope["headers"] if name in PASSED}
        sent = request.body if body is None else body
        try:
            reply = await self._client.request(address, target, sent, headers, self._timeout_s)
        except OSError as error:  # also TimeoutError
            text = f"the worker of trajectory {uid} does not answer: {error or type(error).__name__}"
            raise Fault(503, text, "worker_away", retry_after_s=1) from None
        again = reply.header(b"retry-after")
        return Response(reply.body, reply.status, headers=[(b"retry-after", again.encode())] if again else [])

    async def each(self, target: str, body: bytes | None = None) -> list[Reply | None]:
        """Every sibling's answer; None for one that gave none in time."""
        return list(await asyncio.gather(*(self._one(address, target, body) for address in self.others)))

    async def engines(self) -> list[str]:
        """The engines that the others use; they may have been changed since the start. Empty when nobody answers."""
        answers = await self.each(NUMBERS)
        known = [report.decode(one.body).engines for one in answers if one is not None and one.status == 200]
        return list(known[0]) if known else []

    async def _one(self, address: str, target: str, body: bytes | None) -> Reply | None:
        try:
            return await self._client.request(address, target, body, timeout_s=ANSWER_S)
        except OSError:
            return None

    def close(self) -> None:
        self._client.close()
