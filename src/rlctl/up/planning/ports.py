"""Ports of a run: explicit ones are checked, the others are free ones of this moment."""

import socket

from rlctl.config import Config
from rlctl.up.planning.plan import Ports
from rlctl.wire.ports import free_ports


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
    wanted = (config.pool.port, config.gateway.port, config.rollout.port)
    free = (port for port in free_ports(5 + len(wanted) + config.engine.replicas) if port not in wanted)
    return Ports(
        pool=config.pool.port or next(free),
        gateway=config.gateway.port or next(free),
        rollout=config.rollout.port or next(free),
        engines=tuple(next(free) for _ in range(config.engine.replicas)),
        sft=next(free),
        train=next(free),
    )
