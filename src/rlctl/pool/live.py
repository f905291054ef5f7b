"""What the pool tells its listeners: its numbers a few times a second, and what has ended since."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from rlctl.wire.arrays import count
from rlctl.wire.live import Publisher
from rlctl.wire.messages import Finish, Live
from rlctl.wire.samples import Ended

EVERY_S = 0.5
LATEST = 64
"""Endings told in one message."""


class Broadcast:
    """Collects endings, publishes every EVERY_S."""

    def __init__(self, publisher: Publisher, statistics: Callable[[], dict[str, float]]) -> None:
        self.port = publisher.port
        self._publisher = publisher
        self._statistics = statistics
        self._ended: deque[Ended] = deque(maxlen=LATEST)

    def ended(self, some: Sequence[Ended]) -> None:
        self._ended.extend(some)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            told = [finish(one) for one in self._ended]
            self._ended.clear()
            self._publisher.send(Live(time.time(), self._statistics(), told))


def finish(ended: Ended) -> Finish:
    """An ending in short."""
    one = ended.trajectory
    return Finish(
        uid=one.uid,
        channel=one.channel,
        env=one.env,
        outcome=ended.outcome,
        reward=one.reward,
        steps=len(one.steps),
        tokens=sum(count(step.response_ids) for step in one.steps),
        versions=sorted({version for step in one.steps for version, _ in step.versions}),
    )
