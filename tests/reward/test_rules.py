"""The rules that run in the sandbox, on answers spelled in many ways."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rlctl.config.serving import Reward
from rlctl.reward.functions import Sample
from rlctl.reward.parts import CONTAINED, RUN_PROGRAM, Code, Contained
from rlctl.reward.values import Failure, Value
from rlctl.sandbox.client import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox([*CONTAINED.values(), RUN_PROGRAM], workers=2)
    yield made
    made.close()


def value(
    sandbox: Sandbox, fn: str, response: str, task: dict[str, str] = {}, timeout_s: float = 20, **args: Any
) -> Value:
    kind = Code if fn == "code" else Contained
    part = kind("it", Reward(fn=fn, args=args, timeout_s=timeout_s), sandbox)
    (found,) = part.values([Sample(["earlier", response], task)])
    part.close()
    return found


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"so $x = \frac{1}{2}$", 1),
        (r"\boxed{0.5}", 1),
        (r"$\dfrac{2}{4}$", 1),
        (r"$\frac{1}{3}$", 0),
        (r"$\sqrt{2}$", 0),
        ("no idea", 0),
    ],
)
def test_equal_expressions_are_right_however_they_are_written(sandbox: Sandbox, response: str, right: float) -> None:
    assert value(sandbox, "math", response, {"ground_truth": r"$\frac{1}{2}$"}) == right


def test_a_truth_without_marks_is_read_as_latex(sandbox: Sandbox) -> None:
    assert value(sandbox, "math", r"$x^2 + 2x + 1$", {"ground_truth": "(x+1)^2"}) == 1
    assert value(sandbox, "math", r"$x^2 + 2x + 2$", {"ground_truth": "(x+1)^2"}) == 0


def test_an_answer_that_cannot_be_digested_is_wrong_and_not_a_failed_sample(sandbox: Sandbox) -> None:
    assert value(sandbox, "math", r"$9^{9^{9^{9^9}}}$", {"ground_truth": "$1$"}, timeout_s=1) == 0
    assert value(sandbox, "regex", "a" * 40 + "!", pattern=r"^(a+)+$", timeout_s=0.5) == 0


def test_a_missing_truth_is_a_failure_that_says_so(sandbox: Sandbox) -> None:
    found = value(sandbox, "math", "$1$")
    assert isinstance(found, Failure)
    assert "task has no 'ground_truth'" in found.text


def test_regex_finds_or_compares_its_group(sandbox: Sandbox) -> None:
    assert value(sandbox, "regex", "<think>a\nb</think>", pattern="<think>.*</think>") == 1
    assert value(sandbox, "regex", "nothing", pattern="<think>.*</think>") == 0
    for answer, right in (("A", 1), ("B", 0)):
        task = {"ground_truth": "A"}
        assert value(sandbox, "regex", f"Answer: {answer}.", task, pattern=r"Answer: (\w)", key="ground_truth") == right


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 1}}}


@pytest.mark.parametrize(
    ("response", "valid"),
    [('{"n": 3}', 1), ('Here:\n```json\n{"n": 1}\n```', 1), ('{"n": 0}', 0), ("{}", 0), ("{", 0), ("[" * 100_000, 0)],
)
def test_json_must_be_valid_under_the_schema(sandbox: Sandbox, response: str, valid: float) -> None:
    assert value(sandbox, "json_schema", response, schema=SCHEMA) == valid
    assert value(sandbox, "json_schema", response, {"schema": json.dumps(SCHEMA)}) == valid


ADD = "```python\ndef add(a, b):\n    return {}\n```"
TESTS = {"tests": "assert add(1, 2) == 3\nassert add(-1, 1) == 0"}


@pytest.mark.parametrize(
    ("response", "passed"),
    [
        (ADD.format("a + b"), 1),
        (ADD.format("a - b"), 0),
        ("def add(a, b): return a + b", 1),
        ("```python\nsyntax error\n```", 0),
        ("```python\nimport sys; sys.exit(0)\n```", 0),
        ("```python\nimport os; os._exit(0)\n```", 0),
        ("```python\nwhile True: pass\n```", 0),
        ("```python\nimport os\nwhile True: os.fork()\n```", 0),
        ("```python\nx = [0] * 10**11\n```", 0),
    ],
)
def test_a_program_must_pass_its_tests(sandbox: Sandbox, response: str, passed: float) -> None:
    assert value(sandbox, "code", response, TESTS, timeout_s=1 if "True: pass" in response else 20) == passed


def test_a_program_must_print_what_the_cases_say(sandbox: Sandbox) -> None:
    task = {"cases": json.dumps([{"input": "2 3\n", "output": "5\n"}, {"input": "1 1\n", "output": "2"}])}
    program = "```python\nimport sys\na, b = map(int, input().split())\nprint(a {} b)\nsys.exit(0)\n```"
    assert value(sandbox, "code", program.format("+"), task) == 1
    assert value(sandbox, "code", program.format("*"), task) == 0
    assert value(sandbox, "code", "print(5)", task) == 0
    assert value(sandbox, "code", "print(5)", task, partial=True) == 0.5


@pytest.mark.parametrize("task", [{}, {"cases": "no"}, {"cases": '[{"input": 3}]'}])
def test_a_task_without_usable_tests_is_a_failure(sandbox: Sandbox, task: dict[str, str]) -> None:
    found = value(sandbox, "code", "print(1)", task)
    assert isinstance(found, Failure)
    assert found.kind == "raised"
