"""Rules whose running time depends on what a model wrote: they run in the sandbox.

regex        1 if `pattern` is found in the last response (with `key`: and its first group equals task[key])
math         1 if math-verify takes the last response's answer and task[key] for the same expression
json_schema  1 if the last response is JSON (a fenced block counts) that is valid under `schema` or task[key]
"""

import json
import re
from typing import Any

from rlctl.reward.functions import Sample, ScoringError

_FENCED = re.compile(r"```[a-zA-Z0-9_+-]*\n(.*?)```", re.DOTALL)


def regex(sample: Sample, pattern: str, key: str = "") -> float:
    found = re.search(pattern, sample.response, re.DOTALL)
    if found is None or not key:
        return float(found is not None)
    if not found.re.groups:
        raise ScoringError(f"pattern {pattern!r} has no group to compare with task[{key!r}]")
    return float((found[1] or "").strip() == sample.truth(key).strip())


def math(sample: Sample, key: str = "ground_truth") -> float:
    """A truth without a `$` or `\\boxed` is taken as LaTeX, then as plain text."""
    from math_verify import parse, verify

    truth = sample.truth(key)
    gold = [parsed for text in (truth, f"${truth}$") if (parsed := parse(text, parsing_timeout=None))]
    if not gold:
        raise ScoringError(f"task[{key!r}] = {truth!r} is no mathematical expression")
    given = parse(sample.response, parsing_timeout=None)
    return float(any(verify(one, given, timeout_seconds=None) for one in gold))


def json_schema(sample: Sample, schema: dict[str, Any] | None = None, key: str = "schema") -> float:
    from jsonschema import Draft202012Validator

    try:
        wanted = schema if schema is not None else json.loads(sample.truth(key))
    except json.JSONDecodeError as error:
        raise ScoringError(f"task[{key!r}] is no JSON: {error}") from error
    Draft202012Validator.check_schema(wanted)
    blocks = _FENCED.findall(sample.response)
    try:
        given = json.loads(blocks[-1] if blocks else sample.response)
    except (json.JSONDecodeError, RecursionError):
        return 0.0
    return float(Draft202012Validator(wanted).is_valid(given))
