"""Counts what the rollout process did, for metrics/rollout.jsonl."""

import time
from collections import Counter
from typing import Any

from rlctl.wire.samples import Facts


def end_of(facts: Facts) -> str:
    """How an episode ended, in a word or two: success, failed (and why), out of turns, actions or context, or lost."""
    if facts.error:
        return f"failed: {facts.error.partition(':')[0]}"
    return "success" if facts.success else "truncated" if facts.truncated else "lost"


class Tally:
    """Totals since the start, and means over the episodes since the last row."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._recent: list[Facts] = []

    def finished(self, env: str, facts: Facts) -> None:
        self._totals["episodes"] += 1
        self._totals[f"episodes.{env}"] += 1
        self._totals["turns"] += len(facts.turn_rewards)
        self._totals["failed"] += bool(facts.error)
        self._totals[f"ends.{end_of(facts)}"] += 1
        self._recent.append(facts)

    def waited(self) -> None:
        self._totals["admission_waits"] += 1

    def row(self) -> dict[str, Any]:
        """One metrics row; resets the recent means."""
        recent, self._recent = [facts for facts in self._recent if not facts.error], []
        row: dict[str, Any] = dict(self._totals)
        if recent:
            row["success"] = sum(facts.success for facts in recent) / len(recent)
            row["env_reward"] = sum(facts.env_reward for facts in recent) / len(recent)
            row["format_errors"] = sum(facts.format_errors for facts in recent) / len(recent)
        row["phase.agent.cpu_s"] = round(time.process_time(), 3)
        return row
