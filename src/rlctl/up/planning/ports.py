"""Ports of a run: explicit ones are checked, the others are free ones of this moment."""

import socket
from contextlib import ExitStack

from rlctl.config import Config
from rlctl.up.planning.plan import Ports


def in_use(host: str, port: int) -> bool:
    """Whether somebody listens on host:port already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def pick(config: Config) -> Ports:
    """The configured ports, and free ones (all different) where there is none."""
    with ExitStack() as held:

        def port(wanted: int) -> int:
            if wanted:
                return wanted
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind(("127.0.0.1", 0))
            number: int = probe.getsockname()[1]
            return number

        return Ports(
            pool=port(config.pool.port),
            gateway=port(config.gateway.port),
            rollout=port(config.rollout.port),
            engines=tuple(port(0) for _ in range(config.engine.replicas)),
            sft=port(0),
            train=port(0),
        )
