"""Load on an engine over HTTP, in a process of its own: `python load.py URL answers|turns --requests N`.

    answers   independent prompts of 64 tokens, 64 tokens each         -> tokens/s
    turns     sessions of 10 turns: 28 new tokens in, 4 out, each turn's prompt extends the one before -> requests/s

Both with `concurrency` requests in flight at any time. URL may be several, separated by commas (an engine with
replicas): a session stays with one of them, as behind the gateway. The client is bare sockets, so that little of the
machine is spent on it. Prints one JSON object.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import msgspec

PROMPT, ANSWER = 64, 64
TURNS, TURN_PROMPT, TURN_ANSWER = 10, 28, 4
IDS = range(3, 251)
"""Prompts are random ids of this range: plain bytes in any byte-level vocabulary."""


@dataclass
class Result:
    """What one run of a workload gave."""

    requests: int = 0
    tokens: int = 0
    """Generated."""
    seconds: float = 0.0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    client_cpu_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Connection:
    """One kept-alive HTTP/1.1 connection, one request at a time."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, headers: str) -> tuple[int, bytes]:
        """Status and body of the reply, which must state its length."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.address.hostname, self.address.port)
        reader, writer = self.streams
        head = f"POST {path} HTTP/1.1\r\nHost: {self.address.netloc}\r\nContent-Type: application/json\r\n{headers}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        reply = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 600)).lower()
        length = int(reply.split(b"content-length:")[1].split(b"\r\n")[0])
        return int(reply.split(b" ", 2)[1]), await reader.readexactly(length)


class Client:
    """One worker's connections and what came back through them."""

    def __init__(self, urls: list[str], result: Result, latencies: list[float]) -> None:
        self.connections = [Connection(url) for url in urls]
        self.result, self.latencies = result, latencies

    async def complete(self, prompt: list[int], max_tokens: int, uid: str, number: int) -> list[int]:
        """One completion; an answer of another length than asked for is an error, not a measurement."""
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        start = time.perf_counter()
        connection = self.connections[number % len(self.connections)]
        status, data = await connection.post("/v1/completions", msgspec.json.encode(body), f"X-Session-Id: {uid}\r\n")
        if status != 200:
            raise RuntimeError(f"{status}: {data[:300]!r}")
        choice = msgspec.json.decode(data)["choices"][0]
        ids: list[int] = choice["token_ids"]
        if len(ids) != max_tokens or len(choice["logprobs"]["token_logprobs"]) != max_tokens:
            raise RuntimeError(f"asked for {max_tokens} tokens, got {len(ids)}")
        self.latencies.append(time.perf_counter() - start)
        self.result.tokens += len(ids)
        return ids


async def answer(client: Client, number: int, draws: random.Random) -> None:
    """One prompt, one long answer."""
    await client.complete(draws.choices(IDS, k=PROMPT), ANSWER, f"answer-{number}", number)


async def turns(client: Client, number: int, draws: random.Random) -> None:
    """One episode: every turn's prompt extends what came before."""
    uid = f"turns-{number}-{draws.random()}"
    context: list[int] = []
    for _ in range(TURNS):
        context += draws.choices(IDS, k=TURN_PROMPT)
        context += await client.complete(context, TURN_ANSWER, uid, number)


WORK: dict[str, tuple[Callable[[Client, int, random.Random], Awaitable[None]], int]] = {
    "answers": (answer, 1),
    "turns": (turns, TURNS),
}
"""Workload -> what one worker repeats, and the requests in it."""


async def drive(urls: list[str], work: str, requests: int, concurrency: int, seed: int) -> Result:
    """Run `requests` requests of a workload, `concurrency` in flight."""
    one, size = WORK[work]
    draws = random.Random(seed)
    numbers = iter(range(requests // size))
    result, latencies = Result(), list[float]()

    async def worker() -> None:
        client = Client(urls, result, latencies)
        for number in numbers:
            await one(client, number, draws)

    cpu, start = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(worker())
    result.seconds = time.perf_counter() - start
    result.client_cpu_s = time.process_time() - cpu
    latencies.sort()
    made = result.requests = len(latencies)
    result.requests_per_s, result.tokens_per_s = made / result.seconds, result.tokens / result.seconds
    result.p50_ms, result.p99_ms = 1000 * latencies[made // 2], 1000 * latencies[min(made - 1, made * 99 // 100)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("work", choices=list(WORK))
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    result = asyncio.run(drive(asked.url.split(","), asked.work, asked.requests, asked.concurrency, asked.seed))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
