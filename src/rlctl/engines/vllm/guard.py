"""Nothing of vLLM outlives its API server, not even after SIGKILL.

vLLM's EngineCore and workers are children of the API server and go on when it is killed (seen with 0.32.0). So before
this process becomes vLLM it makes itself the leader of a process group, which its children inherit, and forks a
watcher: once the leader is gone the watcher kills what is left of the group.
"""

import os
import signal
import time

POLL_S = 0.1


def start() -> None:
    """Fork the watcher of the calling process; it survives the caller's exec and ends with the group."""
    leader = os.getpid()
    if os.getpgrp() != leader:
        os.setpgid(0, 0)
    if os.fork() == 0:
        try:
            _watch(leader)
        finally:
            os._exit(0)


def _watch(leader: int) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while os.getppid() == leader:
        time.sleep(POLL_S)
    os.killpg(leader, signal.SIGKILL)
