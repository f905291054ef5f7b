"""The policy that a running vLLM serves, and its replacement while requests are in flight.

    verify files -> pause (keep requests, drop every cache) -> load on all workers -> new version label -> resume

Pausing with `mode="keep", clear_cache=True` lets the running engine step finish, then moves running requests back to
the waiting queue without their cached context and empties the prefix cache. So after `resume` a request in flight is
computed anew from its tokens: later tokens come wholly from the new weights, and none is sampled in between.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any, Protocol

from rlctl.engines.vllm import weights
from rlctl.engines.vllm.weights import Refused
from rlctl.wire.published import WEIGHTS, Checksums, sha256

log = logging.getLogger(__name__)


class EngineClient(Protocol):
    """What is used of vLLM's `AsyncLLM`."""

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None: ...

    async def resume_generation(self) -> None: ...

    async def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> Any: ...

    async def update_weight_version(self, new_version: str) -> None: ...


class Broken(Exception):
    """An update failed half-way: the weights in the workers are neither the old nor the new ones."""


class Policy:
    """Version, checksum and folder of the weights served."""

    def __init__(self, client: EngineClient, model: str) -> None:
        self.version = 0
        self.checksum = ""
        """sha256 of the file published; empty for a start from several files or from the hub."""
        self.path = model
        self.updates = 0
        self.update_s = 0.0
        """Wall seconds in which generation stood still for updates."""
        self.broken = ""
        self._client = client
        self._lock = asyncio.Lock()
        self._shapes: weights.Shapes = {}
        self._checksums = Checksums()

    async def start(self) -> None:
        """Label the weights vLLM came up with as version 0 and take note of their shapes."""
        await self._client.update_weight_version("0")
        folder = Path(self.path)
        if self.path and folder.is_dir():
            self._shapes = weights.shapes(folder)
            if (file := folder / WEIGHTS).is_file():
                self.checksum = await asyncio.to_thread(sha256, file)

    def state(self) -> dict[str, Any]:
        return {"version": self.version, "checksum": self.checksum, "path": self.path}

    async def put(self, version: int, path: str) -> dict[str, Any]:
        """Serve the weights in `path` as `version`; returns once every later token comes from them.

        Raises Refused (nothing has changed) or Broken (the engine must not go on).
        """
        async with self._lock:
            began = time.monotonic()
            if self.broken:
                raise Broken(self.broken)
            if version < self.version:
                raise Refused(f"version {self.version} is served; {version} is older", 409)
            checksum, shapes = await asyncio.to_thread(
                weights.verify, Path(path), version, self._shapes, self._checksums
            )
            paused = time.monotonic()
            try:
                await self._client.pause_generation(mode="keep", clear_cache=True)
                await self._client.collective_rpc("load_published", args=(path,))
                await self._client.update_weight_version(str(version))
                await self._client.resume_generation()
            except BaseException as error:
                self.broken = f"loading {path} failed half-way: {type(error).__name__}: {error}"
                if isinstance(error, Exception):
                    raise Broken(self.broken) from error
                raise
            now = time.monotonic()
            self.version, self.checksum, self.path = version, checksum, path
            self.updates += 1
            self.update_s += now - paused
            self._shapes = self._shapes or shapes
            log.info("policy version %d from %s in %.3f s (paused %.3f s)", version, path, now - began, now - paused)
            return {"version": version, "checksum": checksum, "seconds": round(now - began, 6)}
