"""Wall and CPU seconds by phase of this process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Sums per named phase. CPU time is that of the thread in the phase (torch's own threads are not in it)."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + time.thread_time() - cpu
