"""A vLLM engine makes itself known: warm up, announce in the run directory, write metrics."""

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlctl.engines.vllm.policy import Policy
from rlctl.engines.vllm.settings import FaceSettings
from rlctl.errors import WireError
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.process import announce

log = logging.getLogger(__name__)
METRICS_EVERY_S = 5.0
WARM_UP = {"prompt": [0, 0], "max_tokens": 2, "temperature": 1.0, "logprobs": 0}


@dataclass
class Tally:
    """Counts since the start, of POST /v1/*."""

    requests: int = 0
    """Answered, whatever the answer."""
    failed: int = 0
    """Answered with status 400 or more, or not at all."""
    running: int = 0
    """Open now."""
    tokens: int = 0
    """Output tokens."""


class Presence:
    """The background task of one engine."""

    def __init__(self, settings: FaceSettings, policy: Policy, tally: Tally) -> None:
        self._settings = settings
        self._policy = policy
        self._tally = tally

    async def run(self) -> None:
        """Until cancelled. Raises WireError when the engine cannot serve a first request."""
        run_dir = Path(self._settings.run_dir) if self._settings.run_dir else None
        metrics = Metrics(run_dir, self._settings.name)
        began = time.monotonic()
        try:
            await self._warm_up()
            log.info("first request answered after %.1f s; serving at %s", time.monotonic() - began, self._settings.url)
            announce(run_dir, self._settings.name, self._settings.url)
            while True:
                self._write(metrics, time.monotonic() - began)
                await asyncio.sleep(METRICS_EVERY_S)
        finally:
            self._write(metrics, time.monotonic() - began)
            metrics.close()

    async def _warm_up(self) -> None:
        """One request, through HTTP: the first one compiles kernels (17 s seen), and some models fail only there."""
        url = self._settings.url.rstrip("/")
        while True:
            try:
                await asyncio.to_thread(_get, f"{url}/health")
                break
            except urllib.error.URLError:  # vLLM opens its port after the application has started
                await asyncio.sleep(0.1)
        try:
            await asyncio.to_thread(_post, f"{url}/v1/completions", WARM_UP)
        except (OSError, ValueError) as error:
            raise WireError(f"vLLM does not answer a first request: {error}") from error

    def _write(self, metrics: Metrics, wall_s: float) -> None:
        tally, policy = self._tally, self._policy
        metrics.write(
            version=policy.version,
            updates=policy.updates,
            update_s=round(policy.update_s, 4),
            requests=tally.requests,
            failed=tally.failed,
            running=tally.running,
            tokens=tally.tokens,
            wall_s=round(wall_s, 3),
            cpu_s=round(_cpu_s(), 3),
        )


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=30) as reply:
        reply.read()


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        reply.read()


def _cpu_s() -> float:
    """CPU seconds of this process and of vLLM's processes below it."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
        total += times.user + times.system
    return total
