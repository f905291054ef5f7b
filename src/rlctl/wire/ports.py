"""Free ports of this moment, for processes that will listen later."""

import errno
import random
import socket
from contextlib import ExitStack

from rlctl.errors import ConfigError

CHOICE = range(20_000, 32_768)
"""Below the ports that systems give to whoever names none (Linux from 32768, macOS from 49152): one of those may be
taken between the choice and the moment at which its process listens, or while that process is started again."""
TRIES = 200


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody listens on at `host`; ConfigError where that is not this machine's."""
    found: list[int] = []
    with ExitStack() as held:
        for number in random.SystemRandom().sample(CHOICE, min(len(CHOICE), count + TRIES)):
            if len(found) == count:
                break
            if probe := bound(host, number):
                held.enter_context(probe)
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


def in_use(host: str, port: int) -> bool:
    """Whether host:port cannot be listened on; ConfigError where `host` is no address of this machine."""
    if probe := bound(host, port, reuse=True):
        probe.close()
    return probe is None


def bound(host: str, port: int, reuse: bool = False) -> socket.socket | None:
    """A socket at host:port, None where it is taken or forbidden; `reuse`: left-overs of connections do not count."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"{host} is no address of this machine: {error.strerror}") from None
    probe = socket.socket(family, kind, protocol)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        probe.bind(address)
    except OSError as error:
        probe.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"{host} is no address of this machine") from None
        return None
    return probe
