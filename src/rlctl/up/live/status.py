"""`rlctl status` and `rlctl stop`, from the files of a run directory."""

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from rlctl.errors import RlctlError
from rlctl.up.history.snapshot import components, last_row
from rlctl.up.history.summary import lifetime

ASK_S = 0.5


def status(run_dir: Path) -> dict[str, Any]:
    """{"run": {...}, "components": [{"name", "pid", "state", "url", "policy_version"}]}"""
    life = lifetime(run_dir)
    train = last_row(run_dir / "metrics" / "train.jsonl")
    found = components(run_dir)
    announced = {row["name"] for row in found}
    running = life["status"] == "running"
    waiting = [name for name in life.get("processes", []) if name not in announced] if running else []
    rows = found + [{"name": name, "pid": None, "state": "starting", "url": ""} for name in waiting]
    order = {name: i for i, name in enumerate(life.get("processes", []))}
    rows.sort(key=lambda row: order.get(row["name"], len(order)))
    return {
        "run": {
            "dir": str(run_dir),
            "name": life["name"],
            "status": life["status"],
            "pid": life["pid"] if running else None,
            "step": int(train.get("step", 0)),
            "steps": life["steps"],
        },
        "components": [row | {"policy_version": _version(row, run_dir)} for row in rows],
    }


def _version(row: dict[str, Any], run_dir: Path) -> int | None:
    """The policy version a component works with; None for those that have none, or do not answer."""
    if row["state"] == "ready" and row["name"].startswith("engine-"):
        try:
            with urllib.request.urlopen(f"{row['url']}/policy", timeout=ASK_S) as reply:
                return int(json.load(reply)["version"])
        except (OSError, ValueError, KeyError):  # an engine that does not answer has no known version
            return None
    if row["name"] in ("pool", "train"):
        version = last_row(run_dir / "metrics" / f"{row['name']}.jsonl").get("policy_version")
        return None if version is None else int(version)
    return None


def stop(run_dir: Path, wait_s: float) -> list[str]:
    """End the supervisor, which ends the others; where it is gone, end what its files name. Names of the ended."""
    life = lifetime(run_dir)
    targets = {
        row["name"]: row["pid"]
        for row in components(run_dir)
        if row["state"] not in ("dead", "done", "finished", "ended")
    }
    if life["status"] == "running":
        targets = {"up": life["pid"], **targets}
    processes = {name: psutil.Process(pid) for name, pid in targets.items() if psutil.pid_exists(pid)}
    for process in [processes["up"]] if "up" in processes else processes.values():
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while left := [name for name, process in processes.items() if process.is_running() and not _zombie(process)]:
        if time.monotonic() > deadline:
            raise RlctlError(f"still running after {wait_s:g} s: {', '.join(left)}")
        time.sleep(0.1)
    return list(processes)


def _zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
