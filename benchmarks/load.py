"""Load on one engine over HTTP, in a process of its own: `python load.py URL answers|turns --requests N`.

    answers   independent prompts of 64 tokens, 64 tokens each         -> tokens/s
    turns     sessions of 10 turns: 28 new tokens in, 4 out, each turn's prompt extends the one before -> requests/s

Both with `concurrency` requests in flight at any time. Prints one JSON object.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import aiohttp

PROMPT, ANSWER = 64, 64
TURNS, TURN_PROMPT, TURN_ANSWER = 10, 28, 4
FIRST_ID, LAST_ID = 3, 250
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


class Client:
    """One connection pool and what came back through it."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url
        self.tokens = 0
        self.latencies: list[float] = []

    async def complete(self, prompt: list[int], max_tokens: int, uid: str) -> list[int]:
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
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers={"X-Session-Id": uid}) as reply:
            data = await reply.read()
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {data[:300]!r}")
        choice = json.loads(data)["choices"][0]
        ids: list[int] = choice["token_ids"]
        if len(ids) != max_tokens or len(choice["logprobs"]["token_logprobs"]) != max_tokens:
            raise RuntimeError(f"asked for {max_tokens} tokens, got {len(ids)}")
        self.latencies.append(time.perf_counter() - start)
        self.tokens += len(ids)
        return ids


async def answer(client: Client, number: int, draws: random.Random) -> None:
    """One prompt, one long answer."""
    await client.complete([draws.randint(FIRST_ID, LAST_ID) for _ in range(PROMPT)], ANSWER, f"answer-{number}")


async def turns(client: Client, number: int, draws: random.Random) -> None:
    """One episode: every turn's prompt extends what came before."""
    uid = f"turns-{number}-{draws.random()}"
    context: list[int] = []
    for _ in range(TURNS):
        context += [draws.randint(FIRST_ID, LAST_ID) for _ in range(TURN_PROMPT)]
        context += await client.complete(context, TURN_ANSWER, uid)


WORK: dict[str, tuple[Callable[[Client, int, random.Random], Awaitable[None]], int]] = {
    "answers": (answer, 1),
    "turns": (turns, TURNS),
}
"""Workload -> what one worker repeats, and the requests in it."""


async def drive(url: str, work: str, requests: int, concurrency: int, seed: int) -> Result:
    """Run `requests` requests of a workload, `concurrency` in flight."""
    one, size = WORK[work]
    draws = random.Random(seed)
    numbers = iter(range(requests // size))
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        client = Client(session, url)

        async def worker() -> None:
            for number in numbers:
                await one(client, number, draws)

        cpu, start = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker())
        seconds = time.perf_counter() - start
    ordered = sorted(client.latencies)
    made = len(ordered)
    return Result(
        requests=made,
        tokens=client.tokens,
        seconds=seconds,
        requests_per_s=made / seconds,
        tokens_per_s=client.tokens / seconds,
        client_cpu_s=time.process_time() - cpu,
        p50_ms=1000 * ordered[made // 2],
        p99_ms=1000 * ordered[min(made - 1, made * 99 // 100)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("work", choices=list(WORK))
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    result = asyncio.run(drive(asked.url, asked.work, asked.requests, asked.concurrency, asked.seed))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
