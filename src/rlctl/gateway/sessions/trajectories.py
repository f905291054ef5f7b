"""The trajectories this gateway has open: taken in, registered, ended once, closed when silent."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlctl.errors import PeerRefused
from rlctl.gateway.faults import Fault
from rlctl.gateway.sessions.record import Recorder
from rlctl.gateway.sessions.session import Session
from rlctl.gateway.text.template import Message
from rlctl.wire.messages import CompleteTrajectory
from rlctl.wire.samples import Facts

REMEMBERED = 100_000
"""Ended trajectories whose uid is still known (a second completion is answered, a late call is refused)."""

TURNS_KEPT = 32
"""Answered calls of one trajectory whose retry is still recognised."""


@dataclass(slots=True, eq=False)
class Turn:
    """One call of a client, kept so that its retry gets the same answer."""

    outcome: asyncio.Future[Any]
    undelivered: Any = None
    """`() -> bool`: the client went away before it had the answer."""
    key: int = 0
    """Digest of the request's bytes."""
    feed: Any = None
    """Parts of a streamed answer (dialects.streaming.Feed)."""


@dataclass(slots=True, eq=False)
class Live:
    """An open trajectory."""

    session: Session
    seen: float
    """Monotonic time of its last sign of life."""
    channel: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    running: int = 0
    """Calls in flight."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing runs and an end is awaited."""
    turns: dict[int, Turn] = field(default_factory=dict)
    """By digest of the request's bytes."""
    responses: dict[str, list[Message]] = field(default_factory=dict)
    """Conversation up to each stored answer, by its id (OpenAI responses' previous_response_id)."""
    submitted: set[int] = field(default_factory=set)
    """Step indices that a white-box agent handed in itself."""
    recorded: int = 0
    """Steps handed over to the pool."""
    ending: asyncio.Task[None] | None = None

    def forget_turns(self) -> None:
        """Answers that clients have are kept for a while only: a retry of a call comes soon, or not at all."""
        if len(self.turns) > TURNS_KEPT:
            delivered = [key for key, turn in self.turns.items() if turn.outcome.done() and not turn.undelivered()]
            for key in delivered[: len(self.turns) - TURNS_KEPT]:
                del self.turns[key]


class Trajectories:
    """All of them, by uid."""

    def __init__(self, recorder: Recorder, forget: Callable[[str], None], timeout_s: float) -> None:
        self._recorder = recorder
        self._forget_engine = forget
        self._timeout_s = timeout_s
        self._live: dict[str, Live] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.earlier: dict[str, tuple[int, int]] = {}
        """(Steps, next free index) of trajectories that were open in the pool when this gateway started."""
        self.completed = 0
        self.failed = 0
        self.silent = 0

    def __len__(self) -> int:
        return len(self._live)

    def open(self, uid: str, prompt_uid: str) -> Live:
        """The trajectory, taken in when it is new; Fault 409 when it has ended or belongs to another prompt."""
        live = self._live.get(uid)
        if live is None:
            if uid in self._ended:
                raise Fault(409, f"trajectory {uid} has been completed", "trajectory_completed")
            recorded, following = self.earlier.pop(uid, (0, 0))
            session = Session(uid, prompt_uid, next_index=following, resumed=recorded > 0)
            live = self._live[uid] = Live(session, time.monotonic(), recorded=recorded)
        elif live.ending is not None:
            raise Fault(409, f"trajectory {uid} has been completed", "trajectory_completed")
        elif live.session.prompt_uid != prompt_uid:
            raise Fault(409, f"trajectory {uid} belongs to prompt {live.session.prompt_uid}", "prompt_mismatch")
        live.seen = time.monotonic()
        return live

    def peek(self, uid: str) -> Live | None:
        """The trajectory if it is open; nothing is taken in."""
        return self._live.get(uid)

    def register(self, uid: str, prompt_uid: str, channel: str, metadata: dict[str, Any]) -> None:
        live = self.open(uid, prompt_uid)
        if channel and live.recorded and channel != live.channel:
            raise Fault(409, f"trajectory {uid} already has steps in another channel", "channel_mismatch")
        live.channel = channel or live.channel
        live.metadata |= metadata

    async def end(self, uid: str, message: CompleteTrajectory) -> None:
        """End it once; returns when the pool knows. A repetition waits for the same end. Fault 404 when unknown.

        A trajectory whose first call never succeeded, or that began before this gateway was restarted, has no session
        here; the pool may know it all the same, and its group waits for it.
        """
        if uid in self.earlier:
            self.open(uid, message.prompt_uid)
        live = self._live.get(uid)
        if live is None:
            if uid not in self._ended:
                await self._end_unseen(uid, message)
            return
        if live.ending is None:
            live.ending = asyncio.create_task(self._end(uid, live, message))
        await asyncio.shield(live.ending)

    async def _end_unseen(self, uid: str, message: CompleteTrajectory) -> None:
        if message.status != "failed":
            raise Fault(404, f"no trajectory {uid} here", "trajectory_not_found")
        try:
            await self._recorder.complete(msgspec.structs.replace(message, only_known=True))
        except PeerRefused as error:
            raise Fault(404, f"no trajectory {uid} here, and the pool says: {error}", "trajectory_not_found") from None
        self._forget(uid)
        self.failed += 1

    async def _end(self, uid: str, live: Live, message: CompleteTrajectory) -> None:
        if live.running:
            live.quiet.clear()
            await live.quiet.wait()
        numbers = {k: float(v) for k, v in live.metadata.items() if isinstance(v, int | float)}
        if numbers:
            extra = {**numbers, **message.facts.extra}
            message = msgspec.structs.replace(message, facts=msgspec.structs.replace(message.facts, extra=extra))
        message = msgspec.structs.replace(
            message,
            num_steps=live.recorded - self._recorder.turned_away.pop(uid, 0),
            prompt_uid=live.session.prompt_uid,
            channel=message.channel or live.channel,
        )
        try:
            await self._recorder.complete(message)
        finally:
            self._forget(uid)
        self.completed += message.status == "complete"
        self.failed += message.status == "failed"

    def _forget(self, uid: str) -> None:
        self._live.pop(uid, None)
        self._forget_engine(uid)
        self._ended[uid] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def sweep(self, every_s: float) -> None:
        """Close silent trajectories as failed, until cancelled."""
        ends: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(every_s)
            latest = time.monotonic() - self._timeout_s
            for uid in [uid for uid, one in self._live.items() if one.seen < latest and not one.running]:
                if self._live[uid].ending is None:
                    self.silent += 1
                    facts = Facts(error=f"no call for {self._timeout_s:g} s")
                    task = asyncio.create_task(self.end(uid, CompleteTrajectory(uid, 0, "failed", facts)))
                    ends.add(task)
                    task.add_done_callback(ends.discard)
