"""A real `rlctl pool` process for tests, which can be killed and started again on the same directory and port."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import rlctl
from rlctl.wire.ports import free_port


class PoolProcess:
    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        self.settings = {"run.dir": directory, "model.init": "tiny", "pool.port": self.port} | settings
        (directory / "preset.toml").write_text("")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory / "pool.log").read_text()

    @property
    def argv(self) -> list[str]:
        argv = [sys.executable, "-m", "rlctl", "pool", "--config", str(self.directory / "preset.toml")]
        for key, value in self.settings.items():
            argv += ["-s", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return argv

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(rlctl.__file__).parents[1])}

    def start(self, file_size_limit: int = 0) -> "PoolProcess":
        """Start and wait until it serves. `file_size_limit` bytes is as far as any file can grow (EFBIG beyond)."""
        ready = self.directory / "components" / "pool.json"
        ready.unlink(missing_ok=True)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, resource.RLIM_INFINITY))

        with (self.directory / "pool.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, stderr=log, env=self.environment, preexec_fn=limit if file_size_limit else None
            )
        deadline = time.monotonic() + 60
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the pool did not start:\n{self.log}")
            time.sleep(0.01)
        assert json.loads(ready.read_text())["url"] == self.url
        return self

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)
