"""Ports of a run."""

from rlctl.config import load
from rlctl.up.planning import ports
from rlctl.wire.ports import in_use


def test_what_is_configured_stays_and_the_rest_are_free_ports_all_different() -> None:
    picked = ports.pick(load(["frozenlake-cpu"], ["engine.replicas=3", "gateway.port=18080"]).config)
    numbers = [picked.pool, picked.rollout, *picked.engines, picked.sft, picked.train]
    assert picked.gateway == 18080 and len({*numbers, 18080}) == 8
    assert not any(in_use("127.0.0.1", number) for number in numbers)
