"""The side of whoever calls: a few keepers, each running one call at a time; safe to use from many threads."""

import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from rlctl.errors import ConfigError, RlctlError
from rlctl.sandbox import protocol
from rlctl.sandbox.protocol import Call, Limits, Result

START_S = 60.0
"""For a keeper to import the functions."""
GRACE_S = 10.0
"""For a keeper to answer after the deadline that it enforces itself."""
encode = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(Result).decode


class Sandbox:
    """`call` runs a function of `targets` (module:function, imported once) under limits."""

    def __init__(self, targets: Sequence[str], workers: int = 2) -> None:
        """ConfigError if a target is not there."""
        self.targets = list(dict.fromkeys(targets))
        self.workers = workers
        self._free: queue.LifoQueue[_Keeper] = queue.LifoQueue()
        self._all: list[_Keeper] = []
        self._lock = threading.Lock()
        self._add(_Keeper(self.targets))

    def _add(self, keeper: "_Keeper") -> None:
        self._all.append(keeper)
        self._free.put(keeper)

    def call(
        self, target: str, *arguments: object, limits: Limits = Limits(), argument: str = "", **keywords: Any
    ) -> Result:
        """How the call ended. `argument`: module:Class of the one argument, a msgspec struct that arrives as one."""
        payload = encode(arguments[0] if argument else arguments)
        message = encode(Call(target, payload, keywords, limits, argument))
        keeper = self._take()
        try:
            return keeper.ask(message, limits.time_s + GRACE_S)
        finally:
            self._free.put(keeper)

    def _take(self) -> "_Keeper":
        """A free keeper; a new one while there are fewer than `workers`."""
        with self._lock:
            if self._free.empty() and len(self._all) < self.workers:
                self._add(_Keeper(self.targets))
        return self._free.get()

    def close(self) -> None:
        for keeper in self._all:
            keeper.stop()


class _Keeper:
    """One keeper process, started again when it is gone."""

    def __init__(self, targets: list[str]) -> None:
        self._targets = targets
        self._start()

    def _start(self) -> None:
        argv = [sys.executable, "-m", "rlctl.sandbox.keeper", *self._targets]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for target in self._targets:
            result = self._answer(START_S)
            if result is None:
                self.stop()
                raise RlctlError(f"importing {target} for the sandbox failed or took longer than {START_S:g} s")
            if result.outcome != "value":
                self.stop()
                raise ConfigError(f"{target!r}: {result.text}")

    def ask(self, message: bytes, within_s: float) -> Result:
        try:
            protocol.write(self._in, message)
            result = self._answer(within_s)
        except BrokenPipeError:
            result = None
        if result is None:
            self.stop()
            self._start()
            return Result("crash", text="the sandbox's keeper died")
        return result

    def _answer(self, within_s: float) -> Result | None:
        if not select.select([self._out], [], [], within_s)[0]:
            return None
        message = protocol.read(self._out)
        return None if message is None else decode_result(message)

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)  # children die with their keeper
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
