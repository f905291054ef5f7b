"""Questions that wait for something to become available, first come, first served."""

import asyncio
from collections import deque


class Waiters:
    """A queue of waiting tasks; belongs to one event loop."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def wake(self, number: int) -> None:
        """Let the first `number` of them look again."""
        while number > 0 and self._queue:
            future = self._queue.popleft()
            if not future.done():
                future.set_result(None)
                number -= 1

    async def wait(self, until: float) -> bool:
        """True when woken, False at loop time `until`."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = loop.call_at(until, future.cancel)
        self._queue.append(future)
        try:
            await asyncio.wait([future])
            return not future.cancelled()
        finally:
            timer.cancel()
            if future in self._queue:  # not woken: nobody else takes it out
                self._queue.remove(future)
