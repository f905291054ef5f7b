"""The gateway side by side with direct access and with a public Python LLM proxy (LiteLLM), in one run.

    load generator --HTTP--> target --HTTP--> trivial upstream        (each a process of its own, on loopback)
                                |--ZeroMQ--> trivial pool              (the gateway only)

Targets: the upstream itself; `rlctl gateway` with 1 and with 2 workers; the proxy, where `--proxy-python` names an
interpreter that has it (pip install "litellm[proxy]"; it does not start without a master key, so it checks one). The
upstream answers every request with the same 128 tokens: to the gateway with ids and log-probabilities (about 3 KB), to
the proxy as a plain chat completion. A conversation has four turns whose prompts average 513 tokens; every turn appends
the answer and a short question, so the gateway encodes the first prompt and then only what is new. `--fixed` sends the
513-token prompt once per trajectory instead. `--members` trajectories (8) share their prompt, as those of a group do;
no two groups do.

    python benchmarks/gateway.py [--seconds 5] [--connections 1 32 256] [--proxy-python PATH] [--out result.json]

CPU and memory are those of the target and its children, read from outside; the load generator is in neither. With
`--pin` a target with one worker has core 0 to itself and everything else runs on the other cores.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gateway_load import GROUP, KEY, Asked, load, rss_mb
from gateway_parts import RESPONSE_TOKENS, announced, build_model, launch, pool, start, text_of, upstream
from processes import end
from tokenizers import Tokenizer

from rlctl.config.serving import Gateway
from rlctl.wire.ports import free_port

PIECE = 8
"""Tokens of one piece of a streamed answer."""
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Target:
    """What is measured."""

    name: str
    port: int
    pid: int
    path: str


def bodies(fixed: bool, answer: str, stream: bool) -> list[bytes]:
    """The requests of one conversation, encoded once."""
    messages = [{"role": "user", "content": f"{GROUP.decode()} {text_of(489 if fixed else 261, 1)}"}]
    made = []
    for turn in range(1 if fixed else 4):
        body = {"model": "policy", "messages": messages, "max_tokens": RESPONSE_TOKENS, "stream": stream}
        made.append(json.dumps(body).encode())
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text_of(7, turn)}]
    return made


# ---------------------------------------------------------------- what the upstream says


def engine_replies(tokenizer: Tokenizer, answer: str) -> tuple[bytes, list[bytes]]:
    """An engine's one answer as HTTP: whole, and as the pieces of a stream."""
    ids = [*tokenizer.encode(answer).ids, tokenizer.token_to_id("<|im_end|>")]
    logprobs = [round(float(x), 6) for x in -np.random.default_rng(0).random(len(ids))]
    versions = f"1:{len(ids)}"

    def choice(start: int, end: int, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "token_ids": ids[start:end],
                "logprobs": {"token_logprobs": logprobs[start:end]},
                "finish_reason": "stop" if end >= len(ids) else None}  # fmt: skip

    texts = [tokenizer.decode(ids[at : at + PIECE]) for at in range(0, len(ids), PIECE)]
    chunks: list[dict[str, Any]] = [
        {"choices": [choice(i * PIECE, (i + 1) * PIECE, text)]} for i, text in enumerate(texts)
    ]
    whole = {"object": "text_completion", "choices": [choice(0, len(ids), answer)]}
    return plain(whole, f"x-policy-versions: {versions}\r\n"), streamed(
        [*chunks, {"choices": [], "policy_versions": versions}]
    )


def chat_replies(tokenizer: Tokenizer, answer: str) -> tuple[bytes, list[bytes]]:
    """The same as an OpenAI server says it, for the proxy."""
    head = {"id": "c", "created": 1, "model": "policy"}
    message = {"role": "assistant", "content": answer}
    usage = {"prompt_tokens": 513, "completion_tokens": RESPONSE_TOKENS, "total_tokens": 513 + RESPONSE_TOKENS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    ids = tokenizer.encode(answer).ids
    texts = [tokenizer.decode(ids[at : at + PIECE]) for at in range(0, len(ids), PIECE)]
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": text}, None) for text in texts]
    chunks = [
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [({"role": "assistant", "content": ""}, None), *deltas, ({}, "stop")]
    ]
    return plain({**head, "object": "chat.completion", "choices": [choice], "usage": usage}), streamed(chunks)


def plain(body: dict[str, Any], headers: str = "") -> bytes:
    data = json.dumps(body)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {len(data)}\r\n\r\n"
    return f"{head}{data}".encode()


def streamed(chunks: list[dict[str, Any]]) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    events = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks] + [b"data: [DONE]\n\n"]
    framed = [b"%x\r\n%s\r\n" % (len(one), one) for one in events]
    framed[0], framed[-1] = head + framed[0], framed[-1] + b"0\r\n\r\n"
    return framed


# ---------------------------------------------------------------- targets


@contextmanager
def gateway(work: Path, engine_port: int, workers: int) -> Iterator[Target]:
    """`rlctl gateway` as users start it."""
    store, pool_port = start(pool)
    folder = work / f"gateway-{workers}"
    folder.mkdir()
    preset = folder / "bench.toml"
    several = f"[gateway]\nworkers = {workers}\n" if workers > 1 else ""
    preset.write_text(
        f'[run]\ndir = "{folder}"\n[model]\npath = "{work / "model"}"\nmax_context = 8192\n'
        f'[engine]\nurls = ["http://127.0.0.1:{engine_port}"]\n[pool]\nurl = "tcp://127.0.0.1:{pool_port}"\n{several}',
    )
    process = launch("gateway", preset)
    try:
        port = int(announced(folder, "gateway", process).rpartition(":")[2])
        name = f"gateway, {workers} worker{'s' * (workers > 1)}"
        yield Target(name, port, process.pid, "/{uid}/p{group}" + CHAT)
    finally:
        process.terminate()
        process.wait(20)
        store.terminate()


@contextmanager
def proxy(work: Path, python: str, upstream_port: int) -> Iterator[Target]:
    """LiteLLM's proxy with one worker, nothing switched on."""
    config, port = work / "proxy.yaml", free_port()
    params = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    models = [{"model_name": "policy", "litellm_params": params}]
    config.write_text(json.dumps({"model_list": models, "litellm_settings": {"set_verbose": False}}))
    words = ["-c", "from litellm import run_server; run_server()", "--config", str(config), "--port", str(port)]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    environment = {**os.environ, **quiet, "LITELLM_MASTER_KEY": KEY}
    with (work / "proxy.log").open("wb") as log:
        argv = [python, *words, "--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False"]
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment, cwd=work)
    try:
        wait_until_live(f"http://127.0.0.1:{port}/health/liveliness", process, work / "proxy.log")
        yield Target("litellm proxy, 1 worker", port, process.pid, CHAT)
    finally:
        end(process)


def wait_until_live(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                break
            time.sleep(0.5)
    raise SystemExit(f"the proxy did not start:\n{log.read_text()[-2000:]}")


# ---------------------------------------------------------------- measuring


def measure(target: Target, requests: dict[bool, list[bytes]], options: argparse.Namespace) -> dict[str, Any]:
    """All connections, whole and streamed."""
    cores = sorted(os.sched_getaffinity(0))
    rest = cores[1:] if options.pin and len(cores) > 1 else []
    if rest and "2 workers" not in target.name:
        for thread in Path(f"/proc/{target.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[:1])
    found: dict[str, Any] = {"rss_mb_before": round(rss_mb(target.pid), 1), "whole": [], "streamed": []}
    for stream, key in ((False, "whole"), (True, "streamed")):
        for connections in options.connections:
            tokens = RESPONSE_TOKENS if stream else 0
            asked = Asked(target.path, requests[stream], options.members, tokens)
            _, row = start(load, target.port, asked, connections, options.seconds, target.pid, rest)
            found[key].append({"connections": connections, **row})
            print(json.dumps({"target": target.name, "stream": stream, "connections": connections, **row}), flush=True)
    return found | {"rss_mb_after": round(rss_mb(target.pid), 1)}


def compare(targets: dict[str, Any]) -> None:
    """Adds what each target adds to direct access, in place."""
    for name, target in targets.items():
        for key in ("whole", "streamed") if name != "direct" else ():
            for row, direct in zip(target[key], targets["direct"][key], strict=True):
                for field in ("p50_ms", "p99_ms", "first_text_p50_ms"):
                    if field in row and field in direct:
                        row[f"added_{field}"] = round(row[field] - direct[field], 3)


def run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    tokenizer = build_model(work / "model")
    answer = text_of(RESPONSE_TOKENS - 1, 9)
    requests = {stream: bodies(options.fixed, answer, stream) for stream in (False, True)}
    targets: dict[str, Any] = {}
    with ExitStack() as stack:
        engine, engine_port = start(upstream, *engine_replies(tokenizer, answer))
        stack.callback(engine.terminate)
        targets["direct"] = measure(Target("direct", engine_port, engine.pid, CHAT), requests, options)
        for workers in options.workers:
            if workers > 1 and "workers" not in Gateway.model_fields:
                print(f"skipped: {workers} workers (there is no gateway.workers)")
                continue
            with gateway(work, engine_port, workers) as target:
                targets[target.name] = measure(target, requests, options)
        if not options.proxy_python:
            print("skipped: the proxy (--proxy-python PATH)")
        else:
            server, port = start(upstream, *chat_replies(tokenizer, answer))
            stack.callback(server.terminate)
            with proxy(work, options.proxy_python, port) as target:
                targets[target.name] = measure(target, requests, options)
                targets[target.name]["version"] = version_of(options.proxy_python)
    compare(targets)
    return targets


def version_of(python: str) -> str:
    code = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def processor() -> str:
    """Name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--proxy-python", default="", help="interpreter of a virtual environment with litellm[proxy]")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = {name: value for name, value in vars(options).items() if name not in ("out", "proxy_python")}
    with tempfile.TemporaryDirectory() as name:
        targets = run(options, Path(name))
    machine = {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version()}
    text = json.dumps(
        {"date": time.strftime("%Y-%m-%d"), "machine": machine, "asked": asked, "targets": targets}, indent=1
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
