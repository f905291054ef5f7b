"""Ports of a run: explicit ones are checked, the others are free ones of this moment."""

import random
import socket
from contextlib import ExitStack

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.up.planning.plan import Ports

CHOICE = range(20_000, 32_768)
"""Below the ports that systems give to outgoing connections (Linux from 32768, macOS from 49152): one of those may be
taken between the choice and the moment at which its process listens."""
TRIES = 200


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
            for number in random.SystemRandom().sample(CHOICE, TRIES):
                probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                try:
                    probe.bind(("127.0.0.1", number))
                except OSError:
                    continue
                return number
            raise ConfigError(f"{TRIES} ports from {CHOICE.start} to {CHOICE.stop - 1} are in use; set the ports")

        return Ports(
            pool=port(config.pool.port),
            gateway=port(config.gateway.port),
            rollout=port(config.rollout.port),
            engines=tuple(port(0) for _ in range(config.engine.replicas)),
            sft=port(0),
            train=port(0),
        )
