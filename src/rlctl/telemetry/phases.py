"""Where a process's time goes: wall and CPU seconds in named phases, for the break-down in the report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Sums per phase. `clock` measures CPU: that of the calling thread, or `time.process_time` where a library computes
    in threads of its own."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), self._clock()
        try:
            yield
        finally:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + self._clock() - cpu

    def values(self) -> dict[str, dict[str, float]]:
        """`{"phase_s": {...}, "phase_cpu_s": {...}}`, sums since the start."""
        return {
            "phase_s": {name: round(seconds, 4) for name, seconds in self.wall.items()},
            "phase_cpu_s": {name: round(seconds, 4) for name, seconds in self.cpu.items()},
        }

    def take(self) -> dict[str, float]:
        """`{NAME_s: wall, NAME_cpu_s: CPU}` since the last `take`, for a row per step."""
        row = {f"{name}_s": round(seconds, 6) for name, seconds in self.wall.items()}
        row |= {f"{name}_cpu_s": round(seconds, 6) for name, seconds in self.cpu.items()}
        self.wall.clear()
        self.cpu.clear()
        return row
