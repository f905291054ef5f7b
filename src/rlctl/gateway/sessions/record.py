"""Steps to the pool: batched, acknowledged, kept in memory while the pool is away. None lost, none doubled.

All Steps that wait go in one message; one message is in flight at a time, so load makes bigger batches.
A message without an answer is sent again; the pool knows a Step by (trajectory, index), so nothing is stored twice.
Another Step under an index that is taken (two gateways serve one trajectory) it refuses, and the agent gets a 409.
"""

import asyncio
import logging
from collections import Counter
from typing import Any

from rlctl.errors import PeerRefused, WireError
from rlctl.gateway.faults import Fault
from rlctl.wire.messages import (
    CompleteTrajectory,
    Feedback,
    FeedbackTaken,
    GetOpenSteps,
    GetStatistics,
    SubmitSteps,
)
from rlctl.wire.samples import Step
from rlctl.wire.sockets import Ask

log = logging.getLogger(__name__)
BATCH = 512
"""Most calls in one message."""
PATIENCE_S = 10.0
"""Without an answer for this long the pool counts as away (a line in the log); sending goes on."""


class Recorder:
    """The gateway's way to the pool."""

    def __init__(self, ask: Ask, max_waiting: int) -> None:
        self._ask = ask
        self._max_waiting = max_waiting
        self._waiting: list[tuple[list[Step], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self.unacknowledged = 0
        """Steps that the pool has not confirmed."""
        self.acknowledged = 0
        self.duplicates = 0
        self.refused = 0
        self.turned_away: Counter[str] = Counter()
        """Steps by trajectory that are not in the pool because it refused them: no part of the trajectory's number."""

    def admit(self) -> None:
        """Fault 503 when too many Steps wait for the pool: better no answer than one that is not kept."""
        if self.unacknowledged >= self._max_waiting:
            raise Fault(
                503,
                f"{self.unacknowledged} steps wait for the pool at {self._ask.url}, which does not answer",
                "pool_away",
                retry_after_s=2,
            )

    def submit(self, steps: list[Step]) -> asyncio.Future[None]:
        """Hand over the Steps of one call; done when they are on the pool's disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((steps, future))
        self.unacknowledged += len(steps)
        self._wake.set()
        return future

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._send(batch)

    async def _send(self, batch: list[tuple[list[Step], asyncio.Future[None]]]) -> None:
        steps = [step for one, _ in batch for step in one]
        try:
            done = await self._deliver(SubmitSteps(steps))
        except PeerRefused as error:
            if len(batch) > 1:  # one bad Step must not take its neighbours with it
                for one in batch:
                    await self._send([one])
                return
            self.refused += len(steps)
            self.turned_away.update(step.trajectory_uid for step in steps)
            self.unacknowledged -= len(steps)
            log.error("the pool refused %d steps of %s: %s", len(steps), steps[0].trajectory_uid, error)
            if not batch[0][1].done():
                batch[0][1].set_exception(Fault(409, f"the pool refused the step: {error}", "pool_refused"))
            return
        self.acknowledged += done.accepted
        self.duplicates += done.duplicate
        self.refused += done.refused
        if done.refused:
            log.warning("the pool refused %d steps of trajectories that had ended", done.refused)
        self.unacknowledged -= len(steps)
        for _, future in batch:
            if not future.done():
                future.set_result(None)

    async def complete(self, message: CompleteTrajectory) -> None:
        """Tell the pool until it knows; PeerRefused when it says no."""
        await self._deliver(message)

    async def feedback(self, message: Feedback) -> FeedbackTaken:
        """Tell the pool until it knows; PeerRefused when it says no."""
        taken: FeedbackTaken = await self._deliver(message)
        return taken

    async def open_steps(self) -> dict[str, tuple[int, int]]:
        """What the pool has of open trajectories; asks until it answers."""
        while True:
            try:
                return dict((await self._ask.ask(GetOpenSteps(), PATIENCE_S)).steps)
            except PeerRefused:
                raise
            except WireError as error:
                log.warning("%s; calls wait for it", error)

    async def answers(self, timeout_s: float = 1.0) -> bool:
        """Whether the pool answers now."""
        try:
            await self._ask.ask(GetStatistics(), timeout_s)
        except WireError:
            return False
        return True

    async def _deliver(self, message: SubmitSteps | CompleteTrajectory | Feedback) -> Any:
        while True:
            try:
                return await self._ask.ask(message, PATIENCE_S)
            except PeerRefused:
                raise
            except WireError as error:
                log.warning("%s; %d steps wait", error, self.unacknowledged)
