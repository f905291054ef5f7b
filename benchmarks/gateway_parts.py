"""What the gateway's benchmarks start: a small model, a trivial upstream and pool, `rlctl` components."""

import asyncio
import json
import multiprocessing
import subprocess
import sys
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


# ---------------------------------------------------------------- processes


HEALTHY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"version": 1}'
"""To health checks, and to the question for the policy version."""


class Upstream(asyncio.Protocol):
    """Answers every request with the same bytes: at once, or piece by piece where a stream is asked for."""

    def __init__(self, reply: bytes, pieces: list[bytes]) -> None:
        self.reply, self.pieces = reply, pieces
        self.buffer, self.missing, self.stream = b"", 0, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.missing:
            head, found, _ = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self.missing = len(head) + 4 + content_length(head)
        if len(self.buffer) >= self.missing:
            if self.buffer.startswith(b"GET"):
                self.buffer, self.missing = b"", 0
                self.transport.write(HEALTHY)
                return
            stream = b'"stream":true' in self.buffer or b'"stream": true' in self.buffer
            self.buffer, self.missing = b"", 0
            if stream:
                self.tell(0)
            else:
                self.transport.write(self.reply)

    def tell(self, at: int) -> None:
        """One piece, and the next in the loop's next round."""
        self.transport.write(self.pieces[at])
        if at + 1 < len(self.pieces):
            asyncio.get_running_loop().call_soon(self.tell, at + 1)


def content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"content-length:")
    return int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


def upstream(connection: Any, reply: bytes, pieces: list[bytes]) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Upstream(reply, pieces), "127.0.0.1", 0, backlog=1024)
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


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A process and what it sends first."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(60):
        raise SystemExit(f"{target.__name__} did not start")
    return process, ours.recv()


def launch(command: str, preset: Path) -> subprocess.Popen[bytes]:
    """`rlctl COMMAND` as users start it."""
    return subprocess.Popen([sys.executable, "-m", "rlctl", command, "--config", str(preset)])


def announced(run_dir: Path, name: str, process: subprocess.Popen[bytes]) -> str:
    """Where the component serves, once it does."""
    file = run_dir / "components" / f"{name}.json"
    for _ in range(600):
        if file.exists() and (said := json.loads(file.read_text()))["pid"] == process.pid:
            return str(said["url"])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"{name} did not start")
