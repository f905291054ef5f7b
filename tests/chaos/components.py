"""Real processes that are started again whenever they are killed."""

import asyncio
import os
import subprocess
from pathlib import Path

import rlctl

ROOT = Path(rlctl.__file__).parents[2]


class Component:
    """One process; `keep` restarts it until `stop`."""

    def __init__(self, name: str, argv: list[str], folder: Path) -> None:
        self.name, self.argv = name, argv
        self.kills = 0
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._keeping = True

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(Path(rlctl.__file__).parents[1]), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            return subprocess.Popen(self.argv, stderr=log, stdout=log, env=environment)

    async def keep(self) -> None:
        """Run it; an end that nobody asked for is an error."""
        while self._keeping:
            kills = self.kills
            self._process = self._start()
            while self._process.poll() is None:  # noqa: ASYNC110 (a process of its own, no event to wait for)
                await asyncio.sleep(0.01)
            if self._keeping and self.kills == kills:
                raise AssertionError(f"{self.name} ended by itself:\n{self.log[-3000:]}")

    def kill(self) -> bool:
        """SIGKILL, if it runs."""
        if self._process is None or self._process.poll() is not None:
            return False
        self.kills += 1
        self._process.kill()
        return True

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._keeping = False
        assert self._process
        self._process.terminate()
        for _ in range(1000):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        else:
            self._process.kill()
        return self._process.wait()
