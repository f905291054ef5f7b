"""Parts made of functions: plain ones run here; the user's, and those that may take for ever, in the sandbox."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlctl.config.serving import Reward
from rlctl.reward.functions import WITHOUT_TEXT, RewardFunction, Sample
from rlctl.reward.program import extracted, verdicts
from rlctl.reward.values import Failure, Value, checked
from rlctl.sandbox.client import Sandbox
from rlctl.sandbox.protocol import Limits, Result

CONTAINED = {name: f"rlctl.reward.rules:{name}" for name in ("regex", "math", "json_schema")}
"""Built-in functions that run in the sandbox."""
RUN_PROGRAM = "rlctl.reward.program:run"
SAMPLE = "rlctl.reward.functions:Sample"
"""What functions in the sandbox are called with."""
WITHOUT_ANSWER = ("timeout", "memory", "crash")
"""An answer that a built-in check cannot digest is a wrong answer, not a failed sample."""


class Plain:
    """A function of ours that is fast and cannot hang."""

    def __init__(self, name: str, function: RewardFunction, weight: float = 1.0, args: dict[str, Any] = {}) -> None:
        self.name, self.weight, self.needs_text = name, weight, function not in WITHOUT_TEXT
        self.counts: dict[str, int] = Counter()
        self._function, self._args = function, args

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        return [self._value(sample) for sample in samples]

    def _value(self, sample: Sample) -> Value:
        try:
            value = checked(self._function(sample, **self._args), len(sample.responses))
        except Exception as error:  # wrong arguments, a missing ground truth: a fact about this sample
            value = Failure("raised", f"{type(error).__name__}: {error}")
        if isinstance(value, Failure):
            self.counts[value.kind] += 1
        return value

    def close(self) -> None:
        pass


class Contained:
    """A function in the sandbox: `module:function`, or a built-in of CONTAINED."""

    needs_text = True

    def __init__(self, name: str, section: Reward, sandbox: Sandbox) -> None:
        self.name, self.weight = name, section.weight
        self.counts: dict[str, int] = Counter()
        self._target = CONTAINED.get(section.fn, section.fn)
        self._forgiving = section.fn in CONTAINED
        self._args, self._sandbox = section.args, sandbox
        self._limits = Limits(section.timeout_s, section.memory_mb)
        self._threads = ThreadPoolExecutor(section.workers, f"reward-{name}")

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        return list(self._threads.map(self._value, samples))

    def _value(self, sample: Sample) -> Value:
        result = self._sandbox.call(self._target, sample, limits=self._limits, argument=SAMPLE, **self._args)
        value: Value = Failure(result.outcome, result.text)
        if result.outcome == "value":
            value = checked(result.value, len(sample.responses))
        if isinstance(value, Failure):
            self.counts[value.kind] = self.counts.get(value.kind, 0) + 1
            if self._forgiving and value.kind in WITHOUT_ANSWER:
                return 0.0
        return value

    def close(self) -> None:
        self._threads.shutdown()


class Code:
    """`fn = "code"`: the program in the last response passes its tests (see rlctl.reward.program)."""

    needs_text = True

    def __init__(self, name: str, section: Reward, sandbox: Sandbox) -> None:
        self.name, self.weight = name, section.weight
        self.counts: dict[str, int] = Counter()
        self._args, self._sandbox = section.args, sandbox
        self._limits = Limits(section.timeout_s, section.memory_mb)
        self._threads = ThreadPoolExecutor(section.workers, f"reward-{name}")

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        return list(self._threads.map(self._value, samples))

    def _value(self, sample: Sample) -> Value:
        try:
            value: Value = verdicts(extracted(sample.response), sample.task, self._run, **self._args)
        except (ValueError, TypeError) as error:
            value = Failure("raised", f"{type(error).__name__}: {error}")
            self.counts["raised"] = self.counts.get("raised", 0) + 1
        return value

    def _run(self, program: str, text: str | None) -> Result:
        result = self._sandbox.call(RUN_PROGRAM, program, text, limits=self._limits)
        if result.outcome in WITHOUT_ANSWER:
            self.counts[result.outcome] = self.counts.get(result.outcome, 0) + 1
        return result

    def close(self) -> None:
        self._threads.shutdown()
