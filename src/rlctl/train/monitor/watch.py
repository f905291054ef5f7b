"""The trainer's own watch: writes the mismatch tables, warns, and stops a collapsed run."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rlctl.config import Config
from rlctl.errors import RlctlError
from rlctl.telemetry.metrics import Metrics, read
from rlctl.train.data.samples import TrainSample
from rlctl.train.monitor.diagnostics import collapsed, mismatch, worst

log = logging.getLogger(__name__)


class Watch:
    """On rank 0. What it looks back on is read from the run directory, so a resumed run goes on where it was."""

    def __init__(self, config: Config, step: int) -> None:
        self._settings = config.monitor
        self._metrics = Metrics(config.run_dir, "mismatch") if config.monitor.mismatch_every else None
        self._rows: list[Mapping[str, Any]] = []
        if config.monitor.collapse_window:
            path = config.run_dir / "metrics" / "train.jsonl"
            self._rows = [row for row in read(path) if row["step"] <= step]

    def table(self, step: int, samples: Sequence[TrainSample]) -> None:
        """Log-probabilities of the trainer (column `proximal`) against the engine's."""
        rows = mismatch(samples)
        if self._metrics:
            for row in rows:
                self._metrics.write(step=step, **row)
        log.info("step %d: trainer and engine differ most at %s", step, "; ".join(worst(rows)))

    def step(self, row: Mapping[str, Any]) -> None:
        """RlctlError on a collapse, under `monitor.collapse_stop`."""
        settings, gap = self._settings, row.get("logprob_gap_mean", 0.0)
        if settings.mismatch_alarm and gap > settings.mismatch_alarm:
            log.warning(
                "step %d: log-probabilities of trainer and engine differ by %.3g on average, more than "
                "monitor.mismatch_alarm = %g; see metrics/mismatch.jsonl (monitor.mismatch_every)",
                row["step"],
                gap,
                settings.mismatch_alarm,
            )
        if settings.collapse_window:
            self._rows.append(row)
            if why := collapsed(self._rows, settings.collapse_window, settings.collapse_fraction):
                if settings.collapse_stop:
                    raise RlctlError(f"step {row['step']}: training has collapsed: {why}")
                log.warning("step %d: training has collapsed: %s", row["step"], why)
