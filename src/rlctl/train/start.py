"""How a training process begins and ends: logs, threads, process group, watchdog, SIGTERM."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import torch
from transformers.utils.logging import disable_progress_bar

from rlctl.config import Config
from rlctl.telemetry import logs
from rlctl.telemetry.memory import keep_freed_memory
from rlctl.telemetry.stall import Stall
from rlctl.train.ranks import Ranks


def start(name: str, config: Config, body: Callable[[Ranks, Stall], None]) -> None:
    """Run `body` on this rank; SIGTERM ends the process at once with exit code 0, a standstill with 4."""
    logs.setup(name)
    if not sys.stderr.isatty():
        disable_progress_bar()
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(config.train.threads)
    keep_freed_memory()
    stall = Stall(config.monitor.watchdog_s)
    ranks = Ranks(config)
    try:
        body(ranks, stall)
    finally:
        stall.end()
        ranks.close()


def _leave(signum: int, frame: FrameType | None) -> None:
    """Without the interpreter's farewell, which takes torch seconds; files are whole or absent (`disk.folders`)."""
    logging.shutdown()
    os._exit(0)
