"""A real vLLM engine for the tests, started as `rlctl engine` starts it, and small published models for it."""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.processes import end

VOCABULARY, CONTEXT = 320, 1024
ROOT = Path(__file__).parents[2]
LAUNCH = """
import sys
from rlctl.config import Config
from rlctl.engines.vllm.launch import exec_vllm
exec_vllm(Config.model_validate_json(sys.argv[1]), 0)
"""


def find_python() -> str:
    """The interpreter with vLLM: RLCTL_VLLM_PYTHON, else what `make vllm-cpu` built; empty when there is none."""
    named = os.environ.get("RLCTL_VLLM_PYTHON", "")
    built = ROOT / ".venv-vllm" / "bin" / "python"
    return named or (str(built) if built.exists() else "")


def publish(folder: Path, version: int, seed: int) -> Qwen2ForCausalLM:
    """A random model, wide awake (weights ten times as large as usual, so that models differ in every token)."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.2,
        dtype="float32",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weights.add_(0.3 * torch.randn_like(weights))
    model.save_pretrained(folder)
    seal(folder, version)
    return model


def seal(folder: Path, version: int) -> str:
    """Write PUBLISHED.json; returns the checksum."""
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    text = json.dumps({"version": version, "sha256": {"model.safetensors": checksum}})
    (folder / "PUBLISHED.json").write_text(text, encoding="utf-8")
    return checksum


def logprobs(model: Qwen2ForCausalLM, prompt: list[int], answer: list[int], temperature: float = 1.0) -> torch.Tensor:
    """log p(answer[i] | prompt, answer[:i]) at this temperature by one forward pass; shape (len(answer),)."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)[torch.arange(len(answer)), torch.tensor(answer)]


@dataclass
class Server:
    """A running engine."""

    url: str
    run_dir: Path
    process: subprocess.Popen[bytes]
    start_s: float
    """Seconds from the launch to the announcement."""

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body, headers (lower case)."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return reply.status, json.loads(reply.read()), {k.lower(): v for k, v in reply.headers.items()}
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), {}

    def complete(self, prompt: list[int], max_tokens: int, **more: Any) -> tuple[dict[str, Any], str]:
        """One completion: its body and its X-Policy-Versions. Random by default, never ending early."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 1.0, "logprobs": 0, "return_token_ids": True}
        status, answer, headers = self.call("POST", "/v1/completions", body | {"ignore_eos": True} | more)
        assert status == 200, answer
        return answer, headers["x-policy-versions"]

    def put(self, version: int, folder: Path) -> tuple[int, dict[str, Any]]:
        status, answer, _ = self.call("PUT", "/policy", {"version": version, "path": str(folder)})
        return status, answer

    def generated(self) -> int:
        """Tokens generated since the start, as vLLM's metrics say."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:generation_tokens_total{"))

    def wait_for_tokens(self, count: int, timeout_s: float = 60) -> None:
        """Return as soon as `count` more tokens have been generated."""
        target, deadline = self.generated() + count, time.monotonic() + timeout_s
        while self.generated() < target:
            assert time.monotonic() < deadline, "no tokens come"
            time.sleep(0.02)


def launch(python: str, model: Path, run_dir: Path, port: int, max_context: int = CONTEXT) -> subprocess.Popen[bytes]:
    """What `rlctl engine` does, in a process of its own; its output goes to run_dir/log."""
    config = {
        "run": {"dir": str(run_dir)},
        "model": {"path": str(model), "max_context": max_context},
        "engine": {"kind": "vllm", "urls": [f"http://127.0.0.1:{port}"], "vllm_python": python},
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "log").open("wb") as log:
        argv = [sys.executable, "-c", LAUNCH, json.dumps(config)]
        return subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})


def start(
    python: str, model: Path, run_dir: Path, port: int, timeout_s: float = 400, max_context: int = CONTEXT
) -> Server:
    """Launch and wait for the announcement; AssertionError with the end of the log when it does not come."""
    began = time.monotonic()
    process = launch(python, model, run_dir, port, max_context)
    while not (run_dir / "components" / "engine-0.json").exists():
        if process.poll() is not None or time.monotonic() > began + timeout_s:
            process.kill()
            raise AssertionError(f"vLLM did not start:\n{(run_dir / 'log').read_text()[-3000:]}")
        time.sleep(0.1)
    return Server(f"http://127.0.0.1:{port}", run_dir, process, time.monotonic() - began)


def tree(pid: int) -> list[psutil.Process]:
    """The process and all below it."""
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def has_engine_core(processes: list[psutil.Process]) -> bool:
    """Whether vLLM's EngineCore process, which names itself so, is among them."""
    try:
        return any(one.name().startswith("VLLM::") for one in processes)
    except psutil.NoSuchProcess:  # a passing child; look again
        return False


def stop(server: Server) -> None:
    """SIGTERM, and SIGKILL for what is left."""
    if server.process.poll() is None:
        end(server.process, 30)
