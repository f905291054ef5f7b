"""Reward functions that misbehave, run inside the sandbox by its tests."""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from rlctl.reward.functions import Sample


def fine(sample: Sample) -> float:
    return float(len(sample.response))


def per_step(sample: Sample) -> list[float]:
    return [float(len(response)) for response in sample.responses]


def raises(sample: Sample) -> float:
    raise RuntimeError("boom")


def leaves(sample: Sample) -> float:
    sys.exit(1)


def returns_nan(sample: Sample) -> float:
    return math.nan


def returns_infinity(sample: Sample) -> float:
    return -math.inf


def returns_text(sample: Sample) -> str:
    return "1.0"


def returns_nothing(sample: Sample) -> None:
    return None


def takes_nothing() -> float:
    return 1.0


def sleeps_forever(sample: Sample) -> float:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1000)


def spins(sample: Sample) -> float:
    while True:
        pass


def allocates_50_gb(sample: Sample) -> float:
    return float(len(bytearray(50 << 30)))


def allocates_little_by_little(sample: Sample) -> float:
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 20)))


def fork_bomb(sample: Sample) -> float:
    while True:
        os.fork()


def starts_a_program(sample: Sample) -> float:
    subprocess.run(["true"], check=True)
    return 1.0


def starts_a_thread(sample: Sample) -> float:
    done = []
    thread = threading.Thread(target=lambda: done.append(1.0))
    thread.start()
    thread.join()
    return done[0]


def opens_a_socket(sample: Sample, family: str) -> float:
    socket.socket(getattr(socket, family))
    return 1.0


def writes_to(sample: Sample, path: str) -> float:
    Path(path).write_text("x")
    return 1.0


def deletes(sample: Sample, path: str) -> float:
    Path(path).unlink()
    return 1.0


def changes_mode(sample: Sample, path: str) -> float:
    Path(path).chmod(0o777)
    return 1.0


def writes_in_its_folder(sample: Sample) -> float:
    Path("sub").mkdir()
    Path("sub/note").write_text("x" * 1000)
    return float(len(Path("sub/note").read_text()))


def writes_a_huge_file(sample: Sample) -> float:
    with Path("big").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


def kills_its_parent(sample: Sample) -> float:
    os.kill(os.getppid(), signal.SIGKILL)
    return 1.0


def raises_its_limits(sample: Sample) -> float:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 1.0


def segfaults(sample: Sample) -> float:
    ctypes.string_at(0)
    return 1.0


def exits_silently(sample: Sample) -> float:
    os._exit(0)


def prints_a_lot(sample: Sample) -> float:
    for _ in range(100_000):
        sys.stdout.write("noise " * 100)
    return 1.0


def returns_a_lot(sample: Sample) -> list[float]:
    return [0.0] * 300_000
