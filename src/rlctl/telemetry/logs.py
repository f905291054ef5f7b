"""Log lines on stderr: `12:34:56 gateway info  text`. `rlctl up` sends each process's stderr to logs/NAME.log."""

import logging
import sys


def setup(name: str, level: int = logging.INFO) -> None:
    """Configure the root logger of this process; `name` is the component, e.g. "engine-0"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {name} %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("uvicorn.access", "httpx", "aiohttp.access", "torch.distributed.pipelining"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
