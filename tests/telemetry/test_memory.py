"""What becomes of freed arrays, seen by the page faults of the next one."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys
import numpy as np
from rlctl.telemetry.memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 19) for _ in range(16)]  # 16 x 4 MiB
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print([fill() for _ in range(4)][-1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_a_freed_array_is_not_fetched_from_the_system_again() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "default")
    }
    assert faults["kept"] < 100 < 4000 < faults["default"]  # of 16,384 pages
