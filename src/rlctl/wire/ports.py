"""Free ports of this moment, for processes that will listen later."""

import random
import socket
from contextlib import ExitStack

from rlctl.errors import ConfigError

CHOICE = range(20_000, 32_768)
"""Below the ports that systems give to whoever names none (Linux from 32768, macOS from 49152): one of those may be
taken between the choice and the moment at which its process listens, or while that process is started again."""
TRIES = 200


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody of this machine listens on at `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found: list[int] = []
    with ExitStack() as held:
        for number in random.SystemRandom().sample(CHOICE, min(len(CHOICE), count + TRIES)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                probe.bind((host, number))
            except OSError:
                continue
            found.append(number)
    if len(found) < count:
        raise ConfigError(
            f"{host} has not {count} free ports from {CHOICE.start} to {CHOICE.stop - 1} that can be listened on; "
            "set the ports"
        )
    return found


def free_port(host: str = "127.0.0.1") -> int:
    """One of `free_ports`."""
    return free_ports(1, host)[0]
