"""Ports of a run: explicit ones are checked, the others are free ones of this moment."""

from rlctl.config import Config
from rlctl.up.planning.plan import Ports
from rlctl.wire.ports import free_ports


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
