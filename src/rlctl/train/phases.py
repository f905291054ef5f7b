"""Where the time of a step goes: wall and CPU seconds per named phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Adds up seconds until `take` empties it."""

    def __init__(self) -> None:
        self._wall: dict[str, float] = {}
        self._cpu: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._wall[name] = self._wall.get(name, 0.0) + time.perf_counter() - wall
            self._cpu[name] = self._cpu.get(name, 0.0) + time.process_time() - cpu

    def wall(self, name: str) -> float:
        return self._wall.get(name, 0.0)

    def take(self) -> dict[str, float]:
        """`{NAME_s: wall, NAME_cpu_s: CPU of this process}`, and start anew."""
        row = {f"{name}_s": round(value, 6) for name, value in self._wall.items()}
        row |= {f"{name}_cpu_s": round(value, 6) for name, value in self._cpu.items()}
        self._wall, self._cpu = {}, {}
        return row
