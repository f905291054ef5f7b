"""What a process gives up for good before it runs something it does not trust. Needs no privileges.

rlimits    CPU seconds, address space, file size, core dumps: everywhere
Landlock   files are made, changed and deleted only under one folder: Linux 5.13
seccomp    no sockets, no processes, no signals to others: Linux on x86_64 and aarch64
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

from rlctl.sandbox.filter import MACHINES, program
from rlctl.sandbox.protocol import Limits

NO_NEW_PRIVS, DEATH_SIGNAL, SECCOMP, FILTER, DUMPABLE = 38, 1, 22, 2, 4
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls (the same numbers on every architecture)."""
WRITES = 0b1_1111_1111_0010
"""LANDLOCK_ACCESS_FS: write_file, remove_dir, remove_file, make_* (char, dir, reg, sock, fifo, block, sym)."""
REFER, TRUNCATE = 1 << 13, 1 << 14
"""From version 2 and 3 on."""
WRITE_FILE = 1 << 1
MB = 1 << 20


def available() -> list[str]:
    """Which of the three this system has."""
    found = ["rlimits"]
    if sys.platform == "linux":
        if _syscall(CREATE_RULESET, None, 0, 1) > 0:
            found.append("landlock")
        if platform.machine() in MACHINES and Path("/proc/sys/kernel/seccomp").exists():
            found.append("seccomp")
    return found


def confine(folder: Path, limits: Limits, means: list[str]) -> None:
    """Irrevocable for this process and its threads; OSError when the kernel refuses."""
    _limit(limits)
    if sys.platform != "linux":
        return
    _prctl(NO_NEW_PRIVS, 1)
    _prctl(DUMPABLE, 0)
    if "landlock" in means:
        _landlock(folder)
    if "seccomp" in means:
        _seccomp()


def die_with_parent() -> None:
    """SIGKILL when the parent's thread ends (Linux)."""
    if sys.platform == "linux":
        _prctl(DEATH_SIGNAL, 9)


def _limit(limits: Limits) -> None:
    mapped = 0
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    seconds = max(1, round(limits.time_s + 0.5))
    for what, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, mapped + limits.memory_mb * MB),
        (resource.RLIMIT_FSIZE, limits.file_mb * MB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        resource.setrlimit(what, (value, value))


def _landlock(folder: Path) -> None:
    version = _syscall(CREATE_RULESET, None, 0, 1)
    handled = WRITES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = ctypes.create_string_buffer(struct.pack("<Q", handled), 8)
    ruleset = _checked(_syscall(CREATE_RULESET, attributes, 8, 0), "landlock_create_ruleset")
    for path, access in ((folder, handled), (Path(os.devnull), handled & (WRITE_FILE | TRUNCATE))):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(struct.pack("<Qi", access, descriptor), 12)
        _checked(_syscall(ADD_RULE, ruleset, 1, rule, 0), "landlock_add_rule")
        os.close(descriptor)
    _checked(_syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _seccomp() -> None:
    code = program(MACHINES[platform.machine()], os.getpid())
    instructions = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("<H6xQ", len(code) // 8, ctypes.addressof(instructions)), 16)
    _prctl(SECCOMP, FILTER, ctypes.addressof(header))


def _prctl(option: int, *arguments: int) -> None:
    filled = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(ctypes.CDLL(None, use_errno=True).prctl(option, *filled), f"prctl({option})")


def _syscall(number: int, *arguments: object) -> int:
    filled = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *filled))


def _checked(result: int, name: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result
