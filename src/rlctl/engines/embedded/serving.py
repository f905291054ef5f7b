"""The generator on an event loop: requests are submitted as tasks, weights are swapped between two steps.

A step of a small model takes less time than handing it to a thread and fighting over the interpreter lock would, so it
runs on the loop itself; once steps get long (a real model, a long prompt) they run in a worker thread, and the loop
stays free for health checks and new requests. The generator is only touched between steps.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from rlctl.engines.embedded.generator import Generator
from rlctl.engines.embedded.sequences import Sequence
from rlctl.engines.embedded.weights import BadWeights

log = logging.getLogger(__name__)
INLINE_S = 0.050
"""Steps expected to take longer than this go to the thread."""
PASSES = 3
"""Of the event loop between two steps: a request that has arrived is read, parsed and in the inbox after three."""


class Serving:
    """Owner of a `Generator`; every method is called on the event loop."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self._inbox: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._over: dict[Sequence, asyncio.Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "model")
        self._step_s = 0.0

    async def run(self) -> None:
        """Step until cancelled; an error in the model propagates and ends the process."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                while self._inbox:
                    self._inbox.pop(0)()
                if not self.generator.busy:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                start = loop.time()
                if self._step_s < INLINE_S:
                    finished = self.generator.step()
                else:
                    finished = await loop.run_in_executor(self._thread, self.generator.step)
                self._step_s += 0.1 * (loop.time() - start - self._step_s)
                for sequence in finished:
                    self._ended(sequence)
                for _ in range(PASSES):
                    await asyncio.sleep(0)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _between_steps(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._wake.set()

    def _ended(self, sequence: Sequence) -> None:
        future = self._over.pop(sequence, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def generate(self, sequences: list[Sequence]) -> None:
        """Return when all of them are over. When the caller is cancelled they are aborted and their rows freed."""
        loop = asyncio.get_running_loop()
        futures = []
        for sequence in sequences:
            self._over[sequence] = future = loop.create_future()
            futures.append(future)
            self._between_steps(lambda sequence=sequence: self.generator.add(sequence))  # type: ignore[misc]
        try:
            for future in futures:
                await future
        finally:
            for sequence in sequences:
                if self._over.pop(sequence, None) is not None:
                    self._between_steps(lambda sequence=sequence: self.generator.abort(sequence))  # type: ignore[misc]

    async def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Return when every later token comes from `weights`; BadWeights when they do not fit (the old ones stay)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def act() -> None:
            try:
                self.generator.swap(weights, version)
            except BadWeights as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._between_steps(act)
        await done
