"""One torch thread per process, here and in every process the tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
