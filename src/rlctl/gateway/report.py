"""The gateway's numbers: Prometheus text for /metrics, one row for metrics/gateway.jsonl."""

import time
from typing import Any

from rlctl.gateway.calls import Calls


def row(calls: Calls) -> dict[str, Any]:
    """Totals since the start."""
    counts, pool = calls.counts, calls.recorder
    return {
        "requests": sum(counts.requests.values()),
        "errors": sum(n for (_, status), n in counts.requests.items() if status >= 400),
        "steps": counts.steps,
        "forks": dict(counts.forks),
        "replays": counts.replays,
        "prompt_tokens": counts.prompt_tokens,
        "encoded_tokens": counts.encoded_tokens,
        "response_tokens": counts.response_tokens,
        "sessions": len(calls.trajectories),
        "completed": calls.trajectories.completed,
        "failed": calls.trajectories.failed,
        "silent": calls.trajectories.silent,
        "unacknowledged": pool.unacknowledged,
        "acknowledged": pool.acknowledged,
        "duplicates": pool.duplicates,
        "refused": pool.refused,
        "engine_retries": calls.upstream.retries,
        "wall_s": {phase: round(value, 4) for phase, value in counts.seconds.items()},
        "cpu_s": round(time.process_time(), 3),
    }


def prometheus(calls: Calls) -> bytes:
    """The same in Prometheus' text format, with requests by route and engines one by one."""
    lines: list[str] = []

    def metric(name: str, kind: str, help_text: str, samples: dict[str, float]) -> None:
        lines.append(f"# HELP rlctl_gateway_{name} {help_text}\n# TYPE rlctl_gateway_{name} {kind}")
        lines.extend(f"rlctl_gateway_{name}{labels} {value:g}" for labels, value in samples.items())

    counts, engines = calls.counts, calls.upstream.router.engines
    metric("requests_total", "counter", "HTTP requests by route and status.", {
        f'{{route="{route}",status="{status}"}}': n for (route, status), n in counts.requests.items()
    })  # fmt: skip
    metric("forks_total", "counter", "Steps that do not extend the tip, by reason.", {
        f'{{reason="{reason}"}}': n for reason, n in counts.forks.items()
    })  # fmt: skip
    metric("phase_seconds_total", "counter", "Wall seconds by phase.", {
        f'{{phase="{phase}"}}': n for phase, n in counts.seconds.items()
    })  # fmt: skip
    for name, value in row(calls).items():
        if name in ("sessions", "unacknowledged"):
            metric(name, "gauge", f"{name.capitalize()} now.", {"": value})
        elif isinstance(value, int | float) and name != "requests":
            metric(f"{name}_total", "counter", f"{name.capitalize()} since the start.", {"": value})
    for field in ("up", "running", "waiting", "sessions", "version", "failures", "strikes"):
        values = {f'{{engine="{engine.url}"}}': float(getattr(engine, field)) for engine in engines}
        metric(f"engine_{field}", "gauge", f"Per engine: {field}.", values)
    return ("\n".join(lines) + "\n").encode()
