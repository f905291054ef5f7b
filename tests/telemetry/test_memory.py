"""What becomes of freed arrays, seen by the page faults of the next one; and the peak of what is resident."""

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


PEAK = "from rlctl.telemetry.memory import peak_resident_mb; b = bytearray(50 << 20); del b; print(peak_resident_mb())"
LARGE = f"""
import subprocess, sys
ballast = b"x" * (400 << 20)
print(subprocess.run([sys.executable, "-c", {PEAK!r}], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere only ru_maxrss is there")
def test_the_peak_of_a_process_is_its_own_and_not_that_of_the_one_that_started_it() -> None:
    alone, of_a_large_one = (
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for code in (PEAK, LARGE)
    )
    assert 50 < alone < 200
    assert of_a_large_one == pytest.approx(alone, abs=20)
