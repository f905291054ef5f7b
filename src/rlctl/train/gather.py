"""The batch of one training step: fetched, shaped, and under dynamic sampling filled up.

fetch missing groups --> shape --> groups with signal are kept (and stay leased)
  ^                                groups without: acknowledged at once, so that others can take their place
  +---------- too few -----------------+
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlctl.config import Config
from rlctl.telemetry.phases import Phases
from rlctl.train.data.source import BatchSource
from rlctl.train.objective.shaping import Shaped, shape
from rlctl.wire.samples import Group

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gathered:
    """What one training step learns from."""

    shaped: Shaped = field(default_factory=lambda: Shaped(samples=[], outcomes={}))
    leases: list[str] = field(default_factory=list)
    batches: int = 0
    """Batches fetched."""


def gather(source: BatchSource, config: Config, phases: Phases) -> Gathered:
    """`train.groups_per_step` groups; under `algo.dynamic_sampling` as many with signal, in at most so many fetches."""
    wanted, leases, kept = config.train.groups_per_step, [], Shaped(samples=[], outcomes={})
    for number in range(1, max(1, config.algo.dynamic_sampling) + 1):
        with phases("wait"):
            batch = source.fetch(wanted - (kept.groups - kept.flat_groups))
        leases.append(batch.lease)
        with phases("build"):
            found = shape(batch.groups, config.algo, config.model.max_context, config.response_length)
        kept = kept.joined(found)
        if not config.algo.dynamic_sampling or kept.groups - kept.flat_groups >= wanted:
            break
        settled = _without_signal(batch.groups, found)
        source.ack([], settled)
        log.info("%d of %d groups carry a signal after %d fetches", kept.groups - kept.flat_groups, wanted, number)
    return Gathered(kept, leases, len(leases))


def _without_signal(groups: Sequence[Group], shaped: Shaped) -> dict[str, str]:
    """Outcomes of the groups of which nothing is trained."""
    settled: dict[str, str] = {}
    for group in groups:
        outcomes = {t.uid: shaped.outcomes[t.uid] for t in group.trajectories}
        if "trained" not in outcomes.values():
            settled |= outcomes
    return settled
