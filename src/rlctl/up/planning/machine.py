"""What this machine has and what is installed on it: for `rlctl doctor`, and kept with every run."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from rlctl import __version__
from rlctl.up.planning.devices import visible

PACKAGES = ("torch", "transformers", "accelerate", "peft", "datasets", "safetensors", "vllm", "gymnasium", "matplotlib")
GIGABYTE = 2**30


def rows() -> list[dict[str, Any]]:
    """{"name", "value", "ok", "needed"} of everything looked at."""
    return [*python(), *packages(), *hardware()]


def row(name: str, value: str, ok: bool = True, needed: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "ok": ok, "needed": needed}


def python() -> list[dict[str, Any]]:
    release = platform.python_version()
    return [
        row("rlctl", __version__),
        row("python", f"{release} ({sys.executable})", ok=sys.version_info >= (3, 11), needed=True),
        row("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def packages() -> list[dict[str, Any]]:
    """Versions from the packages' metadata: importing them would take seconds."""
    found = []
    for name in PACKAGES:
        try:
            found.append(row(name, version(name)))
        except PackageNotFoundError:
            found.append(row(name, "not installed", ok=False))
    return found


def hardware(folder: Path = Path()) -> list[dict[str, Any]]:
    gpus, memory, disk = visible(), psutil.virtual_memory(), shutil.disk_usage(folder)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = f"{len(gpus)} visible: {list(gpus)}" if gpus else "none: everything runs on the CPU"
    return [
        row("cpu", f"{cores} cores"),
        row("memory", f"{memory.available / GIGABYTE:.1f} of {memory.total / GIGABYTE:.1f} GiB free"),
        row("gpu", gpu, ok=bool(gpus)),
        row("disk", f"{disk.free / GIGABYTE:.1f} GiB free here", ok=disk.free > GIGABYTE, needed=True),
    ]
