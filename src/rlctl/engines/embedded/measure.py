"""What one engine counts: for `GET /metrics` and for metrics/engine-N.jsonl."""

import asyncio
import time
from typing import Any

from rlctl.engines.embedded.generator import Generator
from rlctl.telemetry.metrics import Metrics

EVERY_S = 5.0


class Measure:
    """Counters since the engine serves."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.requests = 0
        self.disconnects = 0
        self.updates = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def values(self) -> dict[str, Any]:
        """Flat numbers. Phase http is the process's CPU time that is in no other phase: server, JSON, event loop."""
        generator = self.generator
        cpu = {name: generator.phases.cpu.get(name, 0.0) for name in ("prefill", "decode", "sample", "load")}
        total = time.process_time() - self._cpu
        values: dict[str, Any] = {
            "version": generator.version,
            "requests": self.requests,
            "disconnects": self.disconnects,
            "updates": self.updates,
            **generator.counts,
            "running": len(generator.batch.sequences),
            "waiting": len(generator.waiting),
            "sessions_kept": len(generator.sessions),
            "kv_tokens": generator.running.tokens + generator.sessions.tokens,
            "kv_usage": generator.kv_usage,
            "wall_s": time.perf_counter() - self._wall,
            "cpu_s": total,
        }
        for name, seconds in cpu.items():
            values[f"{name}_cpu_s"] = seconds
            values[f"{name}_wall_s"] = generator.phases.wall.get(name, 0.0)
        values["http_cpu_s"] = max(0.0, total - sum(cpu.values()))
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}

    def prometheus(self) -> str:
        """The same as text for Prometheus."""
        gauges = ("version", "running", "waiting", "sessions_kept", "kv_tokens", "kv_usage")
        lines = []
        for name, value in self.values().items():
            kind, metric = ("gauge", name) if name in gauges else ("counter", f"{name}_total")
            lines += [f"# TYPE rlctl_engine_{metric} {kind}", f"rlctl_engine_{metric} {value}"]
        return "\n".join(lines) + "\n"

    async def report(self, metrics: Metrics) -> None:
        """One row every EVERY_S seconds, and a last one at the end."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                metrics.write(**self.values())
        finally:
            metrics.write(**self.values())
            metrics.close()
