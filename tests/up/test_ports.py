"""Ports that nobody has configured."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlctl.config import load
from rlctl.errors import ConfigError
from rlctl.up.planning import ports


def test_ports_differ_are_free_and_lie_where_no_outgoing_connection_gets_one() -> None:
    picked = ports.pick(load(["frozenlake-cpu"], ["engine.replicas=3"]).config)
    numbers = [picked.pool, picked.gateway, picked.rollout, *picked.engines, picked.sft, picked.train]
    assert len(set(numbers)) == 8
    assert all(number in ports.CHOICE and not ports.in_use("127.0.0.1", number) for number in numbers)
    borders = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if borders.exists():
        assert ports.CHOICE.stop <= int(borders.read_text().split()[0])


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:
        taken = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        monkeypatch.setattr(ports, "CHOICE", range(taken, taken + 1))
        monkeypatch.setattr(ports, "TRIES", 1)
        with pytest.raises(ConfigError, match=f"ports from {taken} to {taken} are in use; set the ports"):
            ports.pick(load(["frozenlake-cpu"]).config)
