"""Ports for processes that will listen later."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlctl.errors import ConfigError
from rlctl.wire import ports
from rlctl.wire.ports import free_ports


def test_ports_differ_are_free_and_lie_where_nobody_is_given_one_unasked() -> None:
    picked = free_ports(300)
    assert len(set(picked)) == 300 and all(one in ports.CHOICE for one in picked)
    with ExitStack() as held:
        for one in picked:
            held.enter_context(socket.create_server(("127.0.0.1", one)))
    borders = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if borders.exists():
        assert ports.CHOICE.stop <= int(borders.read_text().split()[0])


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "CHOICE", range(number, number + 1))
        with pytest.raises(ConfigError, match=f"not 1 free ports from {number} to {number} .* set the ports"):
            free_ports(1)
