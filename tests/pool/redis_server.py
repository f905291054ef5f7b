"""A real `redis-server` for tests, which can be killed and started again on the same files and port."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rlctl.wire.ports import free_port

BINARY = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(BINARY is None, reason="no redis-server on this machine: apt-get install redis-server")
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}


class RedisServer:
    def __init__(self, directory: Path, tls: bool = False, **settings: str) -> None:
        """`settings`: of redis.conf."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.tls = tls
        ports = {"port": "0", "tls-port": str(self.port)} if tls else {"port": str(self.port)}
        self.settings = DURABLE | ports | settings
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def argv(self) -> list[str]:
        assert BINARY
        argv = [BINARY, "--bind", "127.0.0.1", "--dir", str(self.directory)]
        for name, value in self.settings.items():
            argv += [f"--{name}", *(value.split() or [""])]
        return argv

    @property
    def log(self) -> str:
        return (self.directory / "redis.log").read_text()

    def start(self) -> "RedisServer":
        """Start and wait until it has read its file and takes connections."""
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"redis-server did not start:\n{self.log}")
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        """Accepts a command and is not loading any more (that it wants a password is an answer, too)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                if self.tls:
                    return True
                connection.sendall(b"PING\r\n")
                return not connection.recv(100).startswith(b"-LOADING")
        except OSError:
            return False

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        assert self.process
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
