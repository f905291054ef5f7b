"""The load generator of benchmarks/gateway.py: keep-alive connections in closed loops, in a process of its own."""

import asyncio
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import uvloop
from gateway_parts import content_length

FIRST_TEXT = re.compile(rb'"(?:content|text)": ?"[^"]')
WARM_UP_S = 1.0
KEY = "sk-benchmark"
"""Sent with every request."""
GROUP = b"00000000"
"""In the requests: stands for the number of the group, which makes its prompt another than the other groups'."""


@dataclass(frozen=True)
class Asked:
    """What a connection asks for."""

    path: str
    """{uid} and {group} stand for the trajectory and its prompt."""
    requests: list[bytes]
    """Of one conversation."""
    members: int
    """Trajectories that share a prompt."""
    tokens: int
    """Of one streamed answer, else 0."""


@dataclass
class Seen:
    """What all connections of one measurement saw."""

    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Streaming: seconds to the first text."""
    errors: int = 0
    first_error: str = ""
    stop: bool = False


class Load(asyncio.Protocol):
    """One connection: conversation after conversation, a request when the last one is answered."""

    def __init__(self, asked: Asked, number: int, connections: int, seen: Seen) -> None:
        """Connection `number` of so many: neighbours work on the same group."""
        self.asked, self.number, self.connections, self.seen = asked, number, connections, seen
        self.stream = asked.tokens > 0
        self.conversation, self.turn, self.buffer, self.need, self.told = 0, 0, b"", 0, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        trajectory = self.conversation * self.connections + self.number
        group = f"{trajectory // self.asked.members:08d}"
        body = self.asked.requests[self.turn].replace(GROUP, group.encode(), 1)
        path = self.asked.path.format(uid=f"b{os.getpid()}.{trajectory}", group=f"{os.getpid()}.{group}")
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.begun = time.perf_counter()
        self.transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.stream and not self.told and FIRST_TEXT.search(self.buffer):
            self.told = True
            self.seen.first.append(time.perf_counter() - self.begun)
        if not self.need and not self.begins():
            return
        if self.buffer.endswith(b"0\r\n\r\n") if self.need < 0 else len(self.buffer) >= self.need:
            self.answered()

    def begins(self) -> bool:
        """Whether the head is there; then `need` is the answer's length, -1 where it comes in chunks."""
        head, found, _ = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        self.need = -1 if b"chunked" in head.lower() else len(head) + 4 + content_length(head)
        if not head.startswith(b"HTTP/1.1 200"):
            self.seen.errors += 1
            self.seen.first_error = self.seen.first_error or self.buffer[:500].decode("utf-8", "replace")
        return True

    def answered(self) -> None:
        self.seen.latencies.append(time.perf_counter() - self.begun)
        if self.stream and not (self.told and b"[DONE]" in self.buffer):
            self.seen.errors += 1
            self.seen.first_error = self.seen.first_error or self.buffer[-500:].decode("utf-8", "replace")
        self.buffer, self.need, self.told = b"", 0, False
        self.turn += 1
        if self.turn == len(self.asked.requests):
            self.turn, self.conversation = 0, self.conversation + 1
        if self.seen.stop:
            self.transport.close()
        else:
            self.ask()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its descendants."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20


def load(
    connection: Any,
    port: int,
    asked: Asked,
    connections: int,
    seconds: float,
    pid: int,
    cpus: list[int],
) -> None:
    """Warm up, then measure the process `pid` for `seconds`; sends a dict."""
    if cpus:
        os.sched_setaffinity(0, cpus)

    async def run() -> dict[str, Any]:
        seen, loop = Seen(), asyncio.get_running_loop()
        for number in range(connections):
            one = Load(asked, number, connections, seen)
            await loop.create_connection(lambda one=one: one, "127.0.0.1", port)
        await asyncio.sleep(WARM_UP_S)
        seen.latencies.clear()
        seen.first.clear()
        cpu, begun = cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        taken, first = list(seen.latencies), list(seen.first)
        wall, used = time.perf_counter() - begun, cpu_seconds(pid) - cpu
        seen.stop = True
        await asyncio.sleep(0.3)
        return figures(taken, first, wall, used, asked.tokens) | {
            "errors": seen.errors,
            **({"first_error": seen.first_error} if seen.errors else {}),
        }

    connection.send(uvloop.run(run()))


def figures(taken: list[float], first: list[float], wall: float, used: float, tokens: int) -> dict[str, Any]:
    if not taken:
        return {"requests_per_s": 0.0}
    ms = np.array(taken) * 1000
    found = {
        "requests_per_s": round(len(ms) / wall, 1),
        "p50_ms": round(float(np.percentile(ms, 50)), 3),
        "p99_ms": round(float(np.percentile(ms, 99)), 3),
        "cpu_ms_per_request": round(used * 1000 / len(ms), 4),
    }
    if tokens:
        early = np.array(first) * 1000
        found["first_text_p50_ms"] = round(float(np.percentile(early, 50)), 3)
        found["first_text_p99_ms"] = round(float(np.percentile(early, 99)), 3)
        found["tokens_per_s"] = round(len(ms) * tokens / wall, 1)
    return found
