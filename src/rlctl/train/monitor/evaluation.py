"""Evaluations: asked of rollout, written to `metrics/eval.jsonl`, one row per result."""

import logging

import msgspec

from rlctl.config import Config
from rlctl.telemetry.metrics import Metrics, read
from rlctl.wire.messages import Evaluate, Evaluated
from rlctl.wire.sockets import AskBlocking

log = logging.getLogger(__name__)


def due(config: Config, step: int) -> list[str]:
    """Names of the [[eval]] tables to measure after `step`: all at start and end, else those whose turn it is."""
    edge = step in (0, config.run.steps)
    return [one.name for one in config.eval if edge or (one.every and step % one.every == 0)]


class Evaluator:
    """Asks rollout for measurements; a step measured before (in this run directory) is not measured again.

    Steps after `done` are to be done again, with other weights, so what an earlier life measured there does not count.
    """

    def __init__(self, config: Config, done: int) -> None:
        self._config = config
        self._ask = AskBlocking(config.rollout_url)
        self._metrics = Metrics(config.run_dir, "eval")
        rows = read(config.run_dir / "metrics" / "eval.jsonl")
        self._done = {(row["step"], row["name"]) for row in rows if row["step"] <= done}

    def measure(self, step: int) -> None:
        """Run what is due after `step` and wait for the results."""
        for name in dict.fromkeys(due(self._config, step)):
            if (step, name) in self._done:
                continue
            request = Evaluate(step=step, name=name, run=f"eval-{name}-{step}")
            reply: Evaluated = self._ask.ask(request, timeout_s=self._config.monitor.watchdog_s)
            for result in reply.results:
                self._metrics.write(**msgspec.to_builtins(result))
                log.info("eval %s at step %d: success %.3f ± %.3f", name, step, result.success_rate, result.success_se)
            self._done.add((step, name))
