"""The gateway's numbers: Prometheus text for /metrics, one row for metrics/gateway.jsonl."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

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


class EngineNumbers(msgspec.Struct, kw_only=True):
    """One engine, as a worker sees it."""

    up: bool
    running: int
    waiting: int
    kv: float
    sessions: int
    version: int
    failures: int
    strikes: int


class Numbers(msgspec.Struct, kw_only=True):
    """Everything on /metrics, of one worker or of several."""

    workers: int = 1
    requests: list[tuple[str, int, int]]
    """(route, status, how many)."""
    row: dict[str, Any]
    engines: dict[str, EngineNumbers]
    """By URL."""


decode = msgspec.json.Decoder(Numbers).decode


def numbers(calls: Calls) -> Numbers:
    """This worker's."""
    return Numbers(
        requests=[(route, status, n) for (route, status), n in calls.counts.requests.items()],
        row=row(calls),
        engines={
            engine.url: EngineNumbers(**{name: getattr(engine, name) for name in EngineNumbers.__struct_fields__})
            for engine in calls.upstream.router.engines
        },
    )


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Numbers by name added up, tables of numbers entry by entry."""
    total: dict[str, Any] = {}
    for one in rows:
        for name, value in one.items():
            known = total.get(name)
            if isinstance(value, dict):
                total[name] = summed([known or {}, value])
            else:
                total[name] = value if known is None else round(known + value, 4)
    return total


def merged(all_: Sequence[Numbers]) -> Numbers:
    """Sums over workers. What they only observe is not summed: an engine is up when all see it up, and its queue,
    KV use, version and strikes are the highest that one of them saw."""
    if len(all_) == 1:
        return all_[0]
    requests: Counter[tuple[str, int]] = Counter()
    engines: dict[str, EngineNumbers] = {}
    for one in all_:
        for route, status, n in one.requests:
            requests[route, status] += n
        for url, engine in one.engines.items():
            engines[url] = _both(engines[url], engine) if url in engines else engine
    return Numbers(
        workers=len(all_),
        requests=[(route, status, n) for (route, status), n in requests.items()],
        row=summed([one.row for one in all_]),
        engines=engines,
    )


def _both(one: EngineNumbers, other: EngineNumbers) -> EngineNumbers:
    return EngineNumbers(
        up=one.up and other.up,
        running=one.running + other.running,
        sessions=one.sessions + other.sessions,
        failures=one.failures + other.failures,
        waiting=max(one.waiting, other.waiting),
        kv=max(one.kv, other.kv),
        version=max(one.version, other.version),
        strikes=max(one.strikes, other.strikes),
    )


def prometheus(numbers: Numbers) -> bytes:
    """In Prometheus' text format."""
    lines: list[str] = []

    def metric(name: str, kind: str, help_text: str, samples: dict[str, float]) -> None:
        lines.append(f"# HELP rlctl_gateway_{name} {help_text}\n# TYPE rlctl_gateway_{name} {kind}")
        lines.extend(f"rlctl_gateway_{name}{labels} {value:.15g}" for labels, value in samples.items())

    metric("workers", "gauge", "Worker processes that answered for this page.", {"": numbers.workers})
    metric("requests_total", "counter", "HTTP requests by route and status.", {
        f'{{route="{route}",status="{status}"}}': n for route, status, n in numbers.requests
    })  # fmt: skip
    metric("forks_total", "counter", "Steps that do not extend the tip, by reason.", {
        f'{{reason="{reason}"}}': n for reason, n in numbers.row["forks"].items()
    })  # fmt: skip
    metric("phase_seconds_total", "counter", "Wall seconds by phase.", {
        f'{{phase="{phase}"}}': n for phase, n in numbers.row["wall_s"].items()
    })  # fmt: skip
    for name, value in numbers.row.items():
        if name in ("sessions", "unacknowledged"):
            metric(name, "gauge", f"{name.capitalize()} now.", {"": value})
        elif isinstance(value, int | float) and name != "requests":
            metric(f"{name}_total", "counter", f"{name.capitalize()} since the start.", {"": value})
    for field in EngineNumbers.__struct_fields__:
        values = {f'{{engine="{url}"}}': float(getattr(engine, field)) for url, engine in numbers.engines.items()}
        metric(f"engine_{field}", "gauge", f"Per engine: {field}.", values)
    return ("\n".join(lines) + "\n").encode()
