"""What is written, decided seed by seed in the order of the seeds: so it does not depend on who was faster."""

from rlctl.envs.splits import Patience
from rlctl.sftgen.rows import Record

REASONS = ("duplicates", "unsolvable", "too_deep", "too_large", "too_short", "no_instance", "other_splits", "surplus")
"""Why a seed that was tried is not written: other_splits are boards of RL, surplus those of a full split."""


class Sink:
    """Counts everything, and remembers the boards that are written."""

    def __init__(self, wanted: dict[str, int]) -> None:
        self.wanted = wanted
        self.written = dict.fromkeys(wanted, 0)
        self.counts = dict.fromkeys(REASONS, 0)
        self.patience = Patience()
        self.bad: list[str] = []
        """FILE:LINE: reason of own levels that have no plan."""
        self.seen: set[str] = set()

    def open_splits(self) -> tuple[str, ...]:
        return tuple(split for split, size in self.wanted.items() if self.written[split] < size)

    def seeds_due(self) -> int:
        """Seeds until all is written, if that goes on as before; very many while nothing is known."""
        seeds = sum(self.written.values()) + sum(self.counts.values())
        rates = ((self.wanted[split], self.written[split]) for split in self.open_splits())
        return max((seeds * wanted // done - seeds if done else 1 << 31 for wanted, done in rates), default=0)

    def take(self, record: Record) -> str:
        """The split to write this record to, or "" (counted)."""
        reason = self._refused(record)
        self.patience.saw(not reason, reason)
        if reason:
            self.counts[reason] += 1
            if record.reason and record.source:
                self.bad.append(f"{record.source}: {reason.replace('_', ' ')}")
            return ""
        self.seen.add(record.key)
        self.written[record.split] += 1
        return record.split

    def _refused(self, record: Record) -> str:
        if record.reason:
            return record.reason
        if record.split not in self.wanted:
            return "other_splits"
        if record.key in self.seen:
            return "duplicates"
        return "" if self.written[record.split] < self.wanted[record.split] else "surplus"
