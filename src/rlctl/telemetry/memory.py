"""Memory of this process: how much it holds, and how one that computes holds on to it."""

import ctypes
import resource
import sys
from pathlib import Path

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt(3)."""
LARGEST = 32 << 20
"""glibc takes no higher threshold for mmap."""


def keep_freed_memory() -> bool:
    """Let freed arrays stay with the process, for the next ones; whether it could be set (glibc only).

    By default glibc gives the end of the heap back to the system as soon as it is twice as long as the largest array
    was, and the next pass fetches it anew, page fault by page fault, which are dear on a virtual machine.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: LARGEST, TRIM_THRESHOLD: 1 << 30, TOP_PAD: 64 << 20}
    return all([mallopt(key, value) == 1 for key, value in wanted.items()])


def peak_resident_mb() -> float:
    """Most that was resident since the process began.

    Linux's own count where there is one: `ru_maxrss` of a process begins with that of the one which started it.
    """
    if sys.platform.startswith("linux"):
        return resident_kib("VmHWM") / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def resident_kib(field: str) -> int:
    """VmRSS (now) or VmHWM (most so far) of this process. Linux only."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
