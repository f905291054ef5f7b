"""Where a process's time goes: wall and CPU seconds in named phases, for the break-down in the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Sums per phase. CPU is that of the calling thread."""

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

    def values(self) -> dict[str, dict[str, float]]:
        """`{"phase_s": {...}, "phase_cpu_s": {...}}`, sums since the start."""
        return {
            "phase_s": {name: round(seconds, 4) for name, seconds in self.wall.items()},
            "phase_cpu_s": {name: round(seconds, 4) for name, seconds in self.cpu.items()},
        }
