r"""Numbers in answers, exactly (fractions, no rounding).

Where the answer stands, first match wins: the last `\boxed{...}`, the line after the last `####` (GSM8K), the line
after the last "answer is" or "answer:"; there the first number counts (after the last "=", if any). Without such a mark
the last number of the text counts.
Spellings: 1,234  $5.00  -3  3/4  \frac{3}{4}  2 1/2  50%  1.5e3  7 apples
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,3}}(?!\w))?"
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)\]}}])[-+])?(?:[$€£]\s?)?(?:(?P<whole>\d+)\s+(?=\d+/\d))?"
    rf"(?P<top>{_DECIMAL})(?:\s?/\s?(?P<bottom>{_DECIMAL}))?(?P<percent>\s?\\?%)?"
)
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_STATED = re.compile(r"answer\s*(?:is|=|:)+", re.IGNORECASE)


@dataclass(frozen=True)
class Number:
    """An exact value and how it was written."""

    value: Fraction
    percent: bool = False


def answer(text: str) -> Number | None:
    """The number that `text` gives as its answer; None if there is none."""
    for marked in _marked(text):
        if numbers := parse(marked.rpartition("=")[2]):
            return numbers[0]
    numbers = parse(text)
    return numbers[-1] if numbers else None


def same(a: Number, b: Number) -> bool:
    """Equal values; a percentage also equals its number and its fraction (50% = 50 = 0.5)."""
    if a.percent == b.percent:
        return a.value == b.value
    percent, plain = (a, b) if a.percent else (b, a)
    return plain.value in (percent.value, percent.value / 100)


def parse(text: str) -> list[Number]:
    """All numbers in `text`, in order."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\,", "").replace("{,}", ",").replace("\\!", "")
    text = _FRAC.sub(r" \1/\2 ", text)
    return [number for match in _NUMBER.finditer(text) if (number := _number(match)) is not None]


def _number(match: re.Match[str]) -> Number | None:
    bottom = _value(match["bottom"]) if match["bottom"] else Fraction(1)
    if not bottom:
        return None
    value = Fraction(match["whole"] or 0) + _value(match["top"]) / bottom
    return Number(-value if match["sign"] == "-" else value, bool(match["percent"]))


def _value(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


def _marked(text: str) -> list[str]:
    """Places that may hold the answer, the most explicit first."""
    places = []
    if boxed := _boxed(text):
        places.append(boxed)
    if "####" in text:
        places.append(text.rpartition("####")[2].strip().partition("\n")[0])
    if stated := list(_STATED.finditer(text)):
        places.append(text[stated[-1].end() :].strip().partition("\n")[0])
    return places


def _boxed(text: str) -> str:
    r"""Content of the last \boxed{...}, braces matched; empty if there is none or it does not close."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return ""
