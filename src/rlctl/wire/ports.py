"""Free ports of this moment, for processes that will listen later."""

import errno
import random
import socket
from itertools import islice
from typing import Any

from rlctl.errors import ConfigError

CHOICE = range(20_000, 32_768)
"""Below the ports that systems give to whoever names none (Linux from 32768, macOS from 49152): one of those may be
taken between the choice and the moment at which its process listens, or while that process is started again."""
TRIES = 200


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody listens on at `host`; ConfigError where that is not this machine's."""
    tried = random.SystemRandom().sample(CHOICE, min(len(CHOICE), count + TRIES))
    found = list(islice((number for number in tried if not in_use(host, number, left_over=True)), count))
    if len(found) < count:
        raise ConfigError(
            f"{host} has not {count} free ports from {CHOICE.start} to {CHOICE.stop - 1} that can be listened on; "
            "set the ports"
        )
    return found


def free_port(host: str = "127.0.0.1") -> int:
    """One of `free_ports`."""
    return free_ports(1, host)[0]


def in_use(host: str, port: int, left_over: bool = False) -> bool:
    """Whether host:port cannot be listened on, at any address of that name; ConfigError where none is this machine's.

    `left_over`: what is left of ended connections counts as well.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"{host} is no address of this machine: {error}") from None
    found = [_free(family, address, not left_over) for family, _, _, _, address in addresses]
    if set(found) == {None}:
        raise ConfigError(f"{host} is no address of this machine")
    return False in found


def _free(family: int, address: Any, reuse: bool) -> bool | None:
    """None: not of this machine."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            probe.bind(address)
    except OSError as error:
        return None if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) else False
    return True
