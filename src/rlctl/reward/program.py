"""`fn = "code"`: Python programs against tests. `run` is what happens in the sandbox, the rest outside of it.

task["tests"]   source that is executed after the program in the same process, usually assertions: passed when it ends
                without an exception. A program that attacks the interpreter it runs in can fake this.
task["cases"]   JSON [{"input": str, "output": str}, ...]: the program reads stdin and prints; what it should print
                never enters the sandbox. Spaces at the ends of lines do not count.
"""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Mapping

import msgspec

from rlctl.reward.functions import ScoringError
from rlctl.sandbox.protocol import Result

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

Run = Callable[[str, str | None], Result]
"""(program, stdin or None) -> how it ended."""


class Case(msgspec.Struct, frozen=True):
    """One pair of task["cases"]."""

    input: str
    output: str


def extracted(response: str) -> str:
    """The last fenced block, else the whole response."""
    blocks = _FENCED.findall(response)
    return str(blocks[-1]) if blocks else response


def verdicts(program: str, task: Mapping[str, str], run: Run, partial: bool = False) -> float:
    """1 if everything passes, else 0; with `partial`, the fraction that passes (the tests count as one)."""
    if not task.get("tests") and not task.get("cases"):
        raise ScoringError("task has neither 'tests' nor 'cases'")
    passed = []
    if tests := task.get("tests"):
        passed.append(run(f"{program}\n\n{tests}\n", None).outcome == "value")
    try:
        cases = msgspec.json.decode(task.get("cases") or "[]", type=list[Case])
    except msgspec.DecodeError as error:
        raise ScoringError(f"task['cases'] is not a list of input and output: {error}") from error
    for case in cases:
        if passed and not partial and not all(passed):
            break
        result = run(program, case.input)
        passed.append(result.outcome == "value" and _lines(str(result.value)) == _lines(case.output))
    return sum(passed) / len(passed) if partial else float(all(passed))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def run(program: str, text: str | None) -> str:
    """Execute `program` as `__main__` with `text` on stdin; what it printed. Raises what the program raises.

    With None it must run to its end: leaving with sys.exit would skip the tests behind it.
    """
    printed = io.StringIO()
    sys.stdin = io.StringIO(text or "")
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
        except SystemExit as leaving:
            if leaving.code not in (None, 0) or text is None:
                raise
    return printed.getvalue()
