"""`rlctl doctor`: what this machine has, before a run finds out."""

import json
from typing import Any

import typer

from rlctl.cli.options import Json

PACKAGES = ("torch", "transformers", "accelerate", "peft", "datasets", "safetensors", "vllm", "gymnasium", "matplotlib")


def doctor(as_json: Json = False) -> None:
    """Show what is installed and what the machine has. Exit code 1 when the core does not work here."""
    rows = [*_python(), *_packages(), *_machine(), _ports()]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        for row in rows:
            typer.echo(f"{'ok' if row['ok'] else '--':3} {row['name']:14} {row['value']}")
    if not all(row["ok"] for row in rows if row["needed"]):
        raise typer.Exit(1)


def _row(name: str, value: str, ok: bool = True, needed: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "ok": ok, "needed": needed}


def _python() -> list[dict[str, Any]]:
    import platform
    import sys

    from rlctl import __version__

    version = platform.python_version()
    return [
        _row("rlctl", __version__),
        _row("python", f"{version} ({sys.executable})", ok=sys.version_info >= (3, 11), needed=True),
        _row("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def _packages() -> list[dict[str, Any]]:
    """Versions from the packages' metadata: importing them would take seconds."""
    from importlib.metadata import PackageNotFoundError, version

    rows = []
    for name in PACKAGES:
        try:
            rows.append(_row(name, version(name)))
        except PackageNotFoundError:
            rows.append(_row(name, "not installed", ok=False))
    return rows


def _machine() -> list[dict[str, Any]]:
    import os
    import shutil

    import psutil

    from rlctl.up.devices import visible

    gpus, gigabyte = visible(), 2**30
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(".")
    return [
        _row("cpu", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"),
        _row("memory", f"{memory.available / gigabyte:.1f} of {memory.total / gigabyte:.1f} GiB free"),
        _row(
            "gpu", f"{len(gpus)} visible: {list(gpus)}" if gpus else "none: everything runs on the CPU", ok=bool(gpus)
        ),
        _row("disk", f"{disk.free / gigabyte:.1f} GiB free here", ok=disk.free > gigabyte, needed=True),
    ]


def _ports() -> dict[str, Any]:
    """A loopback port can be bound."""
    import socket

    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return _row("ports", f"127.0.0.1 cannot be listened on: {error}", ok=False, needed=True)
    return _row("ports", "free ports on 127.0.0.1", needed=True)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Configuration")(doctor)
