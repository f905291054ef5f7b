"""Parts made of functions: plain ones run here; the user's, and those that may take for ever, in the sandbox."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
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


class Sandboxed(ABC):
    """What runs in the sandbox, several samples at a time."""

    needs_text = True

    def __init__(self, name: str, section: Reward, sandbox: Sandbox) -> None:
        self.name, self.weight = name, section.weight
        self.counts: dict[str, int] = Counter()
        self._counting = Lock()
        self._fn, self._args, self._sandbox = section.fn, section.args, sandbox
        self._limits = Limits(section.timeout_s, section.memory_mb)
        self._threads = ThreadPoolExecutor(section.workers, f"reward-{name}")

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        return list(self._threads.map(self._value, samples))

    @abstractmethod
    def _value(self, sample: Sample) -> Value: ...

    def _count(self, kind: str) -> None:
        with self._counting:
            self.counts[kind] += 1

    def close(self) -> None:
        self._threads.shutdown()


class Contained(Sandboxed):
    """A function: `module:function`, or a built-in of CONTAINED."""

    def _value(self, sample: Sample) -> Value:
        target = CONTAINED.get(self._fn, self._fn)
        result = self._sandbox.call(target, sample, limits=self._limits, argument=SAMPLE, **self._args)
        value: Value = Failure(result.outcome, result.text)
        if result.outcome == "value":
            value = checked(result.value, len(sample.responses))
        if isinstance(value, Failure):
            self._count(value.kind)
            if self._fn in CONTAINED and value.kind in WITHOUT_ANSWER:
                return 0.0
        return value


class Code(Sandboxed):
    """`fn = "code"`: the program in the last response passes its tests (see rlctl.reward.program)."""

    def _value(self, sample: Sample) -> Value:
        try:
            return verdicts(extracted(sample.response), sample.task, self._run, **self._args)
        except (ValueError, TypeError) as error:
            self._count("raised")
            return Failure("raised", f"{type(error).__name__}: {error}")

    def _run(self, program: str, text: str | None) -> Result:
        result = self._sandbox.call(RUN_PROGRAM, program, text, limits=self._limits)
        if result.outcome in WITHOUT_ANSWER:
            self._count(result.outcome)
        return result
