"""Soak of the gateway: many sessions for long, engines killed and added, if asked for the pool killed as well.

    sessions --HTTP--> rlctl gateway --HTTP--> engines, some of them SIGKILLed and replaced by others at new addresses
    (this process)          |
                            +--ZeroMQ--> rlctl pool ---> run/trajectories, read at the end

    python benchmarks/gateway_soak.py --minutes 20 --sessions 200 [--pool-down-s 10] [--out result.json]

Every answer that a client got is written down: trajectory, step_index, and its token ids or its text. At the end each
of them must be in the pool, once, with these tokens (`lost`, `wrong` = 0), and the pool must hold nothing else that was
sampled (`doubled` = 0). Memory of the gateway is flat when the mean of the last third is within 5 % of the middle
third's. Exit code 1 when one of these does not hold (memory counts from 3 minutes on).
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import psutil
import uvloop
from aiohttp import web
from gateway_parts import announced, build_model, launch, start, text_of
from processes import end
from tokenizers import Tokenizer

from rlctl.wire.arrays import unpack_ids
from rlctl.wire.frames import read_ended
from rlctl.wire.ports import free_port

ENGINES = 3
TOKENS = (8, 48)
PIECES = 6
"""Of a streamed answer."""
LATENCY_S = (0.05, 0.4)
RETRIES = 60
MB = 1 << 20


# ---------------------------------------------------------------- an engine, in a process of its own


def engine(connection: Any, seed: int, vocabulary: int, end: int) -> None:
    """Answers with random words after some time, streamed where asked."""
    dice = random.Random(seed)

    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        ids = [dice.randrange(32, vocabulary - 2) for _ in range(dice.randint(*TOKENS))][: asked["max_tokens"] - 1]
        ids.append(end)
        logprobs, pause = [-dice.random() for _ in ids], dice.uniform(*LATENCY_S)
        whole = {"index": 0, "text": "", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
        if not asked.get("stream"):
            await asyncio.sleep(pause)
            return web.json_response({"choices": [{**whole, "finish_reason": "stop"}]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        size = -(-len(ids) // PIECES)
        for at in range(0, len(ids), size):
            await asyncio.sleep(pause / PIECES)
            part = {**whole, "token_ids": ids[at : at + size], "logprobs": {"token_logprobs": logprobs[at : at + size]}}
            part["finish_reason"] = "stop" if at + size >= len(ids) else None
            await response.write(b"data: " + json.dumps({"choices": [part]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def healthy(request: web.Request) -> web.Response:
        return web.json_response({"version": 0})

    async def serve() -> None:
        app = web.Application(client_max_size=64 * MB)
        app.router.add_post("/v1/completions", complete)
        for path in ("/health", "/policy", "/metrics"):
            app.router.add_get(path, healthy)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        connection.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    uvloop.run(serve())


# ---------------------------------------------------------------- sessions


@dataclass
class Books:
    """What the clients did and got."""

    answers: dict[tuple[str, int], Any] = field(default_factory=dict)
    """(trajectory, step_index) -> token ids (completions) or text (chat)."""
    ended: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    over: bool = False


class Agent:
    """Plays episode after episode."""

    def __init__(self, http: aiohttp.ClientSession, url: str, number: int, books: Books, think_s: float) -> None:
        self.http, self.url, self.number, self.books, self.think_s = http, url, number, books, think_s
        self.dice = random.Random(number)

    async def play(self) -> None:
        episode = 0
        while not self.books.over:
            uid = f"s{self.number}.{episode}"
            episode += 1
            begun = await self.post("/init_trajectory", {"trajectory_uid": uid, "prompt_uid": uid, "channel": "soak"})
            base = begun["base_url"].removeprefix(self.url)
            await (self.chat(uid, base) if self.dice.random() < 0.7 else self.complete(uid, base))
            await self.post(f"{base}/complete_trajectory", {"reward": 1.0})
            self.books.ended.add(uid)

    async def chat(self, uid: str, base: str) -> None:
        messages = [{"role": "user", "content": text_of(40, self.dice.randrange(1000))}]
        for _ in range(self.dice.randint(1, 8)):
            await asyncio.sleep(self.dice.uniform(0, 2 * self.think_s))
            body = {"messages": messages, "max_tokens": 64, "stream": self.dice.random() < 0.5}
            got, text = await self.sampled(f"{base}/chat/completions", body)
            self.note(uid, got, text)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": text_of(8, len(messages))}]

    async def complete(self, uid: str, base: str) -> None:
        prompt = [self.dice.randrange(32, 200) for _ in range(30)]
        for _ in range(self.dice.randint(1, 8)):
            await asyncio.sleep(self.dice.uniform(0, 2 * self.think_s))
            body = {"prompt": prompt, "max_tokens": 64, "return_token_ids": True}
            whole = await self.post(f"{base}/completions", body)
            ids = whole["choices"][0]["token_ids"]
            self.note(uid, whole["id"], ids)
            prompt += [*ids, self.dice.randrange(32, 200)]

    def note(self, uid: str, answer: str, what: Any) -> None:
        key = uid, int(answer.rpartition("-")[2])
        self.books.counts["same_index_twice"] += key in self.books.answers
        self.books.answers[key] = what

    async def sampled(self, path: str, body: dict[str, Any]) -> tuple[str, str]:
        """(id, text) of a chat completion."""
        if not body["stream"]:
            whole = await self.post(path, body)
            return whole["id"], whole["choices"][0]["message"]["content"]
        for attempt in range(RETRIES):
            if (got := await self.streamed(path, body, attempt)) is not None:
                return got
            self.books.counts["streams_broken"] += 1
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{path}: no answer after {RETRIES} attempts")

    async def streamed(self, path: str, body: dict[str, Any], attempt: int) -> tuple[str, str] | None:
        headers = {"x-stainless-retry-count": str(attempt)}
        uid, text, done = "", "", False
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            if response.status != 200:
                await self.refused(response)
                return None
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if data == b"[DONE]":
                    done = True
                elif data and "choices" in (chunk := json.loads(data)):
                    uid = chunk["id"]
                    text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        return (uid, text) if done else None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """A good answer; the same request again while engines or pool are away."""
        for attempt in range(RETRIES):
            headers = {"x-stainless-retry-count": str(attempt)}
            async with self.http.post(self.url + path, json=body, headers=headers) as response:
                if response.status == 200:
                    return await response.json()
                await self.refused(response)
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{path}: no answer after {RETRIES} attempts")

    async def refused(self, response: aiohttp.ClientResponse) -> None:
        self.books.counts[f"status_{response.status}"] += 1
        if response.status not in (429, 502, 503, 504):
            raise RuntimeError(f"{response.url}: {response.status} {(await response.text())[:300]}")


# ---------------------------------------------------------------- disturbances


class Engines:
    """The engines that run, and what becomes of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocabulary = tokenizer.get_vocab_size()
        self.end = tokenizer.token_to_id("<|im_end|>")
        self.running: list[tuple[Any, str]] = []
        self.started = self.killed = 0

    def add(self) -> str:
        process, port = start(engine, self.started, self.vocabulary, self.end)
        self.started += 1
        self.running.append((process, f"http://127.0.0.1:{port}"))
        return self.running[-1][1]

    async def trouble(self, http: aiohttp.ClientSession, gateway: str, every_s: float) -> None:
        """Kill one, add another, and take the dead one off the list some seconds later; until cancelled."""
        dice = random.Random(0)
        while True:
            await asyncio.sleep(every_s)
            process, url = self.running.pop(dice.randrange(len(self.running)))
            process.kill()
            self.killed += 1
            added = await asyncio.to_thread(self.add)
            async with http.post(f"{gateway}/engines", json={"add": [added]}) as response:
                response.raise_for_status()
            await asyncio.sleep(min(5.0, every_s / 2))
            async with http.post(f"{gateway}/engines", json={"remove": [url]}) as response:
                response.raise_for_status()

    def stop(self) -> None:
        for process, _ in self.running:
            process.kill()
            process.join()


async def memory(pids: dict[str, int], every_s: float, found: dict[str, list[int]]) -> None:
    """Resident bytes of the processes, until cancelled; a killed one is left out."""
    while True:
        for name, pid in pids.items():
            if psutil.pid_exists(pid):
                found.setdefault(name, []).append(psutil.Process(pid).memory_info().rss)
        await asyncio.sleep(every_s)


# ---------------------------------------------------------------- accounts


def accounts(run_dir: Path, books: Books, tokenizer: Tokenizer) -> dict[str, int]:
    """What the pool has against what the clients got."""
    kept: Counter[tuple[str, int]] = Counter()
    failed, wrong, ended = 0, 0, set()
    for _, record in read_ended(run_dir / "trajectories"):
        uid = record.trajectory.uid
        ended.add(uid)
        for step in record.trajectory.steps:
            if step.fork_reason == "failed":
                failed += 1
                continue
            kept[uid, step.step_index] += 1
            ids, told = unpack_ids(step.response_ids).tolist(), books.answers.get((uid, step.step_index))
            if told is not None:
                wrong += told != (ids if isinstance(told, list) else tokenizer.decode(ids[:-1]))
    return {
        "answers": len(books.answers),
        "trajectories": len(books.ended),
        "lost": sum(key not in kept for key in books.answers),
        "lost_trajectories": len(books.ended - ended),
        "wrong": wrong,
        "doubled": sum(kept.values()) - len(kept) + sum(key not in books.answers for key in kept),
        "holes_filled": failed,
    }


def flatness(samples: list[int], every_s: float) -> dict[str, Any]:
    """Memory by minute (mean, MB), and last third over middle third."""
    per_minute = max(1, round(60 / every_s))
    minutes = [fmean(samples[i : i + per_minute]) / MB for i in range(0, len(samples), per_minute)]
    third = len(samples) // 3
    growth = fmean(samples[2 * third :]) / fmean(samples[third : 2 * third]) - 1 if third else 0.0
    return {"mb_per_minute": [round(one, 1) for one in minutes], "last_third_over_middle": round(growth, 4)}


# ---------------------------------------------------------------- the run


async def soak(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    tokenizer = build_model(work / "model")
    engines, books, samples = Engines(tokenizer), Books(), {}
    urls = [engines.add() for _ in range(ENGINES)]
    preset, run_dir, pool_port = work / "soak.toml", work / "run", free_port()
    preset.write_text(
        f'[run]\ndir = "{run_dir}"\n[model]\npath = "{work / "model"}"\nmax_context = 4096\n'
        f"[engine]\nurls = {json.dumps(urls)}\n[pool]\nport = {pool_port}\n[rollout]\nmax_tokens = 64\n{options.extra}"
    )
    pool = launch("pool", preset)
    announced(run_dir, "pool", pool)
    gateway = launch("gateway", preset)
    try:
        url = announced(run_dir, "gateway", gateway)
        pids = {"gateway": gateway.pid, "pool": pool.pid}
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
            beside = [
                asyncio.create_task(engines.trouble(http, url, options.kill_every_s)),
                asyncio.create_task(memory(pids, options.sample_s, samples)),
            ]
            agents = [
                asyncio.create_task(Agent(http, url, i, books, options.think_s).play()) for i in range(options.sessions)
            ]
            half = options.minutes * 30
            await asyncio.sleep(half)
            if options.pool_down_s:
                pool = await pool_away(pool, preset, options.pool_down_s, pids, run_dir)
            await asyncio.sleep(half)
            books.over = True
            for task in (*beside, *agents):
                if task.done():
                    task.result()
            await asyncio.wait_for(asyncio.gather(*agents), 120)
            for task in beside:
                task.cancel()
            async with http.get(f"{url}/metrics") as response:
                metrics = await response.text()
    finally:
        for process in (gateway, pool):
            end(process)
        engines.stop()
    return {
        "engines_killed": engines.killed,
        "engines_started": engines.started,
        "clients_saw": dict(books.counts),
        **accounts(run_dir, books, tokenizer),
        "memory": {name: flatness(values, options.sample_s) for name, values in samples.items()},
        "gateway_500s": metrics.count('status="500"'),
    }


async def pool_away(
    pool: subprocess.Popen[bytes], preset: Path, down_s: float, pids: dict[str, int], run_dir: Path
) -> subprocess.Popen[bytes]:
    """SIGKILL, nothing for a while, a new pool on the same folder and port."""
    pool.kill()
    pool.wait()
    await asyncio.sleep(down_s)
    again = launch("pool", preset)
    await asyncio.to_thread(announced, run_dir, "pool", again)
    pids["pool"] = again.pid
    return again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--think-s", type=float, default=1.0, help="mean pause of an agent before a call")
    parser.add_argument("--kill-every-s", type=float, default=15.0, help="an engine is killed this often")
    parser.add_argument("--pool-down-s", type=float, default=0.0, help="SIGKILL the pool half-way, for so long")
    parser.add_argument("--sample-s", type=float, default=2.0, help="memory is looked at this often")
    parser.add_argument("--extra", default="", help="further lines of the preset, e.g. '[gateway]\\nworkers = 2'")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.extra = options.extra.replace("\\n", "\n")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        result = uvloop.run(soak(options, Path(name)))
    asked = {name: value for name, value in vars(options).items() if name != "out"}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    seconds = round(time.monotonic() - began, 1)
    head = {"date": time.strftime("%Y-%m-%d"), **machine, "asked": asked, "seconds": seconds}
    text = json.dumps({**head, **result}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    sound = not any(result[name] for name in ("lost", "lost_trajectories", "wrong", "doubled", "gateway_500s"))
    sound = sound and not result["clients_saw"].get("same_index_twice")
    flat = abs(result["memory"]["gateway"]["last_third_over_middle"]) <= 0.05
    if not sound or (not flat and options.minutes >= 3):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
