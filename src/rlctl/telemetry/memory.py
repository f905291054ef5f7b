"""How a process that computes holds on to memory."""

import ctypes
import sys

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
