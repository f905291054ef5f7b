"""Gateway against direct access: requests/s, added latency, CPU per request.

    load generator --HTTP--> gateway --HTTP--> trivial upstream        (each a process of its own, on loopback)
                                |--ZeroMQ--> trivial pool

The upstream answers every completion with the same 128 token ids and log-probabilities (about 5 KB). A conversation has
four turns whose prompts average 513 tokens; every turn appends the answer and a short question, so the gateway encodes
the first prompt and then only what is new. `--fixed` sends the 513-token prompt once per trajectory instead.

    python benchmarks/gateway.py [--seconds 5] [--connections 1 32 256] [--fixed] [--out result.json]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rlctl.wire.messages import (
    CompleteTrajectory,
    Done,
    GetOpenSteps,
    OpenSteps,
    Statistics,
    SubmitSteps,
)
from rlctl.wire.sockets import Answer

RESPONSE_TOKENS = 128
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SENTENCE = "the lake is frozen and you may walk left or right until the goal comes near but never fall into a hole"
WORDS = SENTENCE.split()


def build_model(folder: Path) -> Tokenizer:
    """A small byte-level tokenizer with a ChatML template."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator([" ".join(WORDS), "".join(WORDS)], trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return tokenizer


def text_of(tokens: int, seed: int) -> str:
    dice = np.random.default_rng(seed)
    return "the" + "".join(" " + WORDS[i] for i in dice.integers(0, len(WORDS), tokens - 1))


def bodies(fixed: bool, answer: str) -> list[bytes]:
    """The requests of one conversation, encoded once."""
    messages = [{"role": "user", "content": text_of(508 if fixed else 296, 1)}]
    made = []
    for turn in range(1 if fixed else 4):
        made.append(json.dumps({"model": "policy", "messages": messages, "max_tokens": RESPONSE_TOKENS}).encode())
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text_of(7, turn)}]
    return made


# ---------------------------------------------------------------- processes


class Upstream(asyncio.Protocol):
    """Answers every request with the same bytes."""

    def __init__(self, reply: bytes) -> None:
        self.reply, self.buffer, self.missing = reply, b"", 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.buffer += data
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self.missing, self.buffer = content_length(head) - len(rest), b""
        if self.missing <= 0:
            self.missing = 0
            self.transport.write(self.reply)


def content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"content-length:")
    return int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


def upstream(connection: Any, reply: bytes) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Upstream(reply), "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def pool(connection: Any) -> None:
    async def handle(request: Any) -> Any:
        match request:
            case SubmitSteps(steps):
                return Done(accepted=len(steps))
            case CompleteTrajectory():
                return Done(accepted=1)
            case GetOpenSteps():
                return OpenSteps()
        return Statistics()

    async def serve() -> None:
        answer = Answer("127.0.0.1")
        connection.send(answer.port)
        await answer.serve(handle)

    uvloop.run(serve())


class Load(asyncio.Protocol):
    """One connection in a closed loop: conversation after conversation."""

    def __init__(self, prefix: str, requests: list[bytes], latencies: list[float], state: dict[str, Any]) -> None:
        self.prefix, self.requests, self.latencies, self.state = prefix, requests, latencies, state
        self.conversation, self.turn, self.buffer, self.need = 0, 0, b"", 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        body = self.requests[self.turn]
        path = f"/{self.prefix}.{self.conversation}/p/v1/chat/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.begun = time.perf_counter()
        self.transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.need:
            head, found, _ = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self.need = len(head) + 4 + content_length(head)
            if not head.startswith(b"HTTP/1.1 200"):
                self.state["errors"] += 1
                self.state["first_error"] = self.state["first_error"] or self.buffer[:500].decode("utf-8", "replace")
        if len(self.buffer) < self.need:
            return
        self.latencies.append(time.perf_counter() - self.begun)
        self.buffer, self.need = b"", 0
        self.turn += 1
        if self.turn == len(self.requests):
            self.turn, self.conversation = 0, self.conversation + 1
        if not self.state["stop"]:
            self.ask()
        else:
            self.transport.close()


def load(connection: Any, port: int, requests: list[bytes], connections: int, seconds: float, pid: int) -> None:
    """Warm up for a second, then count completions for `seconds`; sends a dict of results."""

    async def run() -> dict[str, Any]:
        state: dict[str, Any] = {"stop": False, "errors": 0, "first_error": ""}
        latencies: list[float] = []
        loop = asyncio.get_running_loop()
        for number in range(connections):
            prefix = f"b{os.getpid()}.{number}"
            await loop.create_connection(lambda p=prefix: Load(p, requests, latencies, state), "127.0.0.1", port)
        await asyncio.sleep(1.0)
        latencies.clear()
        cpu, begun = cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        taken, wall, used = list(latencies), time.perf_counter() - begun, cpu_seconds(pid) - cpu
        state["stop"] = True
        await asyncio.sleep(0.2)
        ms = np.array(taken) * 1000
        return {
            "requests_per_s": round(len(ms) / wall, 1),
            "p50_ms": round(float(np.percentile(ms, 50)), 3),
            "p99_ms": round(float(np.percentile(ms, 99)), 3),
            "cpu_ms_per_request": round(used * 1000 / len(ms), 4),
            "errors": state["errors"],
            **({"first_error": state["first_error"]} if state["errors"] else {}),
        }

    connection.send(uvloop.run(run()))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A process and what it sends first."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(60):
        raise SystemExit(f"{target.__name__} did not start")
    return process, ours.recv()


def start_gateway(work: Path, engine: int, pool_port: int) -> tuple[subprocess.Popen[bytes], int]:
    """`rlctl gateway` as users start it; its port."""
    preset = work / "bench.toml"
    preset.write_text(
        f'[run]\ndir = "{work / "run"}"\n[model]\npath = "{work / "model"}"\nmax_context = 8192\n'
        f'[engine]\nurls = ["http://127.0.0.1:{engine}"]\n[pool]\nurl = "tcp://127.0.0.1:{pool_port}"\n',
    )
    process = subprocess.Popen([sys.executable, "-m", "rlctl", "gateway", "--config", str(preset)])
    announced = work / "run" / "components" / "gateway.json"
    for _ in range(300):
        if announced.exists():
            return process, int(json.loads(announced.read_text())["url"].rpartition(":")[2])
        time.sleep(0.1)
    raise SystemExit("the gateway did not start")


def reply(tokenizer: Tokenizer, answer: str) -> bytes:
    """The upstream's one answer, as HTTP."""
    ids = [*tokenizer.encode(answer).ids, tokenizer.token_to_id("<|im_end|>")]
    logprobs = [round(float(x), 6) for x in -np.random.default_rng(0).random(len(ids))]
    choice = {"index": 0, "text": answer, "token_ids": ids, "finish_reason": "stop"}
    body = json.dumps({"object": "text_completion", "choices": [{**choice, "logprobs": {"token_logprobs": logprobs}}]})
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-policy-versions: 1:{len(ids)}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"fixed": options.fixed, "seconds": options.seconds, "cores": os.cpu_count(), "rows": []}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tokenizer = build_model(work / "model")
        answer = text_of(RESPONSE_TOKENS - 1, 9)
        requests = bodies(options.fixed, answer)
        engine, engine_port = start(upstream, reply(tokenizer, answer))
        store, pool_port = start(pool)
        process, port = start_gateway(work, engine_port, pool_port)
        try:
            for connections in options.connections:
                settings = (requests, connections, options.seconds)
                _, direct = start(load, engine_port, *settings, engine.pid)
                _, through = start(load, port, *settings, process.pid)
                row = {
                    "connections": connections,
                    "direct": direct,
                    "gateway": through,
                    "added_p50_ms": round(through["p50_ms"] - direct["p50_ms"], 3),
                    "added_p99_ms": round(through["p99_ms"] - direct["p99_ms"], 3),
                }
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
            status = Path(f"/proc/{process.pid}/status").read_text()
            result["gateway_rss_mb"] = int(status.split("VmRSS:")[1].split()[0]) // 1024
        finally:
            process.terminate()
            process.wait(10)
            for one in (engine, store):
                one.terminate()
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
