"""The pool in numbers: what it publishes, answers to GetStatistics and writes to its metrics."""

from rlctl.pool.ledger import Ledger
from rlctl.wire.samples import OUTCOMES, TRAIN


def statistics(ledger: Ledger) -> dict[str, float]:
    """Flat numbers. Per channel: `created` = the sum over outcomes + `open`."""
    state = ledger.state
    channels = {TRAIN} | {group.channel for group in state.groups.values()}
    values: dict[str, float] = {f"{TRAIN}.{name}": 0 for name in ("created", *OUTCOMES)}
    values.update(state.counters)
    for channel in channels | {name.split(".")[0] for name in state.counters if "." in name}:
        created = values.get(f"{channel}.created", 0)
        counted = sum(n for name, n in state.counters.items() if name.startswith(f"{channel}."))
        values[f"{channel}.open"] = created - (counted - created)
    return values | {
        "policy_version": state.version,
        "groups_in_flight": ledger.in_flight,
        "groups_limit": ledger.rules.max_in_flight,
        "queue_ready": ledger.ready,
        "queue_limit": ledger.rules.max_queue_size,
        "queue_unscored": len(ledger.unscored),
        "leases": len(state.leases),
        "groups_on_lease": sum(len(lease.groups) for lease in state.leases.values()),
        "groups_held": sum(group.held for group in state.groups.values()),
        "live_trajectories": len(state.trajectories),
        "resident_steps": ledger.resident_steps,
        "resident_bytes": ledger.resident_bytes,
        "ended": state.ended,
        "groups_opened": state.groups_opened,
        "feedback": state.noted,
        "over": float(state.over),
    }
