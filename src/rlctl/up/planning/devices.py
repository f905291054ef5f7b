"""Which GPU does what: found without importing torch, split by pure arithmetic."""

import os
import subprocess
from dataclasses import dataclass

from rlctl.config import Config
from rlctl.errors import ConfigError


@dataclass(frozen=True)
class Split:
    """GPU indices per process; all empty on a machine without GPU."""

    engines: tuple[tuple[int, ...], ...]
    """One tuple per engine replica."""
    train: tuple[int, ...]


def visible() -> tuple[int, ...]:
    """Indices of the CUDA devices this process may use (CUDA_VISIBLE_DEVICES, else what the driver lists)."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return tuple(int(part) for part in allowed.split(",") if part.strip().isdigit())
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines())))


def split(config: Config, gpus: tuple[int, ...]) -> Split:
    """Engines take GPUs from the front, the trainer from the back; they share where there are too few for both.

    `deploy.engine_gpus` and `deploy.train_gpus` say it explicitly. ConfigError where the trainer's processes, which
    need a GPU each, or an engine's tensor-parallel ranks do not fit.
    """
    deploy, replicas, ranks = config.deploy, config.engine.replicas, config.train.processes
    if deploy.device == "cpu" or (deploy.device == "auto" and not gpus):
        return Split(engines=((),) * replicas, train=())
    if not gpus:
        raise ConfigError("deploy.device = 'cuda', but there is no GPU; use -s deploy.device=cpu")
    named = set(deploy.engine_gpus) | set(deploy.train_gpus)
    if missing := sorted(named - set(gpus)):
        raise ConfigError(f"deploy: GPU {missing} is not among the visible ones {list(gpus)}")
    width = int(config.engine.vllm.get("tensor_parallel_size", 1))
    needed = replicas * width
    train = tuple(deploy.train_gpus)
    engine = tuple(deploy.engine_gpus) or _without(gpus, train, needed)
    train = train or _without(gpus, engine[:needed], ranks)
    if len(train) < ranks:
        raise ConfigError(f"train.processes = {ranks} need a GPU each, but there are {len(train)}: {list(train)}")
    if len(engine) < width:
        raise ConfigError(f"engine.vllm.tensor_parallel_size = {width}, but the engines have {len(engine)} GPUs")
    slots = max(1, len(engine) // width)
    chosen = tuple(engine[i % slots * width : i % slots * width + width] for i in range(replicas))
    return Split(engines=chosen, train=train[-ranks:])


def _without(gpus: tuple[int, ...], taken: tuple[int, ...], needed: int) -> tuple[int, ...]:
    """The GPUs that are not taken, if they are enough; else all of them (shared)."""
    free = tuple(gpu for gpu in gpus if gpu not in taken)
    return free if len(free) >= needed else gpus
