"""Ports for processes that will listen later."""

import socket
from contextlib import ExitStack

import pytest

from rlctl.errors import ConfigError
from rlctl.wire import ports
from rlctl.wire.ports import free_ports, in_use


def test_ports_differ_are_free_and_lie_where_nobody_is_given_one_unasked() -> None:
    picked = free_ports(300)
    assert len(set(picked)) == 300 and all(one in ports.CHOICE for one in picked)
    with ExitStack() as held:
        for one in picked:
            held.enter_context(socket.create_server(("127.0.0.1", one)))
    assert ports.CHOICE.stop <= 32_768, "Linux gives away those from there on, unless it is told otherwise"


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "CHOICE", range(number, number + 1))
        with pytest.raises(ConfigError, match=f"not 1 free ports from {number} to {number} .* set the ports"):
            free_ports(1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_somebody_listens_on_is_in_use(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        assert in_use(host, number := taken.getsockname()[1])
    assert not in_use(host, number)


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 64])  # the second is no name: nobody is asked for it
def test_an_address_of_another_machine_is_told_from_a_port_in_use(host: str) -> None:
    for ask in (lambda: in_use(host, 20_000), lambda: free_ports(1, host)):
        with pytest.raises(ConfigError, match=f"^{host} is no address of this machine"):
            ask()
