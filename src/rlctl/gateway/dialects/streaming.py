"""Streamed answers: parts come from the engine into a feed; any number of readers (a client, its retry) tell them.

engine --Part--> Feed --> Teller (what is certain) --> Writer (the dialect's events) --> client
pool   --acknowledged--> outcome --> Writer.end       the end of a stream says that the Step is on the pool's disk
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Protocol

from rlctl.gateway.faults import Fault
from rlctl.gateway.sampling import Begun, Outcome, Part
from rlctl.gateway.text.speech import Piece, Teller


class Feed:
    """The parts of one call, kept from the first on."""

    def __init__(self) -> None:
        self.begun: Begun | None = None
        self.parts: list[Part] = []
        self.over = False
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self, begun: Begun) -> None:
        self.begun = begun

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self._wake()

    def close(self) -> None:
        """The call has an outcome, good or bad."""
        self.over = True
        self._wake()

    def shrink(self) -> None:
        """The answer is out: one part per choice is left, packed, for a retry that may come."""
        whole: dict[int, list[Part]] = {}
        for part in self.parts:
            whole.setdefault(part.index, []).append(part)
        self.parts = [joined(parts) for parts in whole.values()]

    async def news(self, known: int) -> None:
        """Wait for more than `known` parts, or the end."""
        while len(self.parts) <= known and not self.over:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def joined(parts: list[Part]) -> Part:
    """The parts of one choice as one."""
    ids, logprobs = array("i"), array("d")
    for part in parts:
        ids.extend(part.ids)
        logprobs.extend(part.logprobs)
    top = [one for part in parts for one in part.top or ()] or None
    text = "".join(part.text for part in parts)
    return Part(parts[0].index, text, ids, logprobs, top, any(part.hush for part in parts))


class Writer(Protocol):
    """A dialect's events."""

    def begin(self, begun: Begun) -> Iterable[bytes]:
        """Before the first piece."""

    def piece(self, part: Part, pieces: list[Piece]) -> Iterable[bytes]:
        """New tokens of one choice, with the text that is certain by them."""

    def end(self, outcome: Outcome, rests: list[list[Piece]]) -> Iterable[bytes]:
        """The Steps are kept; per choice what is left to tell."""

    def fault(self, fault: Fault) -> Iterable[bytes]:
        """The call failed after the stream had begun."""


async def events(
    feed: Feed, outcome: Callable[[], Awaitable[Outcome]], writer: Writer, teller: Callable[[], Teller]
) -> AsyncIterator[bytes]:
    """The whole stream. Bytes of events that are ready together come together."""
    tellers: dict[int, Teller] = {}
    parts, known = feed.parts, 0  # this very list: another reader may shrink the feed meanwhile
    try:
        if feed.begun is not None:
            yield b"".join(writer.begin(feed.begun))
        while not feed.over or known < len(parts):
            await feed.news(known)
            fresh, known = parts[known:], len(parts)
            ready = b"".join(event for part in fresh for event in _told(part, tellers, writer, teller))
            if ready:
                yield ready
        done = await outcome()
        messages = done.messages or [{"content": one.text} for one in done.sampled]
        rests = [tellers.setdefault(i, teller()).rest(given) for i, given in enumerate(messages)]
        yield b"".join(writer.end(done, rests))
    except Fault as fault:
        yield b"".join(writer.fault(fault))


def _told(part: Part, tellers: dict[int, Teller], writer: Writer, teller: Callable[[], Teller]) -> Iterator[bytes]:
    one = tellers.setdefault(part.index, teller())
    if part.hush:
        one.hush()
    yield from writer.piece(part, one.hear(part.text))
