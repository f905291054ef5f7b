"""Which number an answer gives, in every spelling, on hand-made and on real GSM8K answers."""

import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.reward.functions import Sample, numeric
from rlctl.rules.numbers import answer

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("She makes 9 * 2 = $18 every day.\n#### 18", 18),
        ("so 70,000 in all", 70000),
        ("1,234,567.50 dollars", Fraction("1234567.5")),
        ("from 1,2,3", 3),
        ("it is $5.", 5),
        ("below zero: -7", -7),
        ("\u22127 degrees", -7),
        ("10-3", 3),
        ("10 - 3", 3),
        ("half, that is 3/4", Fraction(3, 4)),
        (r"\boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{\dfrac{1}{2}} of 8", Fraction(1, 2)),
        ("about 2 1/2 cups", Fraction(5, 2)),
        (r"\boxed{1{,}200}", 1200),
        (r"first \boxed{3}, no: \boxed{4} and not 5", 4),
        (r"\boxed{x = 5}", 5),
        ("1.5e3 grams", 1500),
        ("The answer is 18 dollars for 7 days.", 18),
        ("The answer is 16 - 7 = 9 * 2 = 18 dollars for 7 days.", 18),
        ("Answer:\n42", 42),
        ("the answer is 3.\nNo, the answer is 4.\nBye 5", 4),
        (".5 of it", Fraction(1, 2)),
        ("#### 5\nIgnore 7", 5),
        (r"unclosed \boxed{3 but 4", 4),
    ],
)
def test_the_number_an_answer_gives(text: str, value: int | Fraction) -> None:
    found = answer(text)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize("text", ["", "no idea", "many apples", "7/0"])
def test_a_text_without_a_number_gives_none(text: str) -> None:
    assert answer(text) is None


@pytest.mark.parametrize(
    ("given_text", "right"), [("50%", 1), (r"\boxed{50\%}", 1), ("5000%", 1), ("5%", 0), ("500%", 0)]
)
def test_a_percentage_equals_its_number_or_its_fraction(given_text: str, right: int) -> None:
    assert numeric(Sample([given_text], {"ground_truth": "50"})) == right


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    answer(text)


@given(st.integers(-(10**9), 10**9))
def test_an_integer_is_found_in_every_spelling(value: int) -> None:
    for text in (
        f"{value}",
        f"{value:,}",
        f"so {value}.",
        f"\\boxed{{{value:,}}}",
        f"{value}.00 euros",
        f"#### {value}",
    ):
        found = answer(text)
        assert found is not None
        assert found.value == value, text


def spellings(truth: str) -> list[str]:
    """The same number as a model might write it (the last step of a solution, with distractors around)."""
    plain = truth.replace(",", "")
    number = Fraction(plain)
    percent = number * 100
    texts = [
        f"We get 3 + 4 = 7.\n#### {truth}",
        f"So the total is \\boxed{{{plain}}}. I checked it 2 times.",
        f"So the total is {truth}",
        f"The answer is ${plain}.",
        f"The answer is {plain} apples in 12 boxes.",
        f"\\boxed{{\\frac{{{(number * 6).numerator}}}{{{(number * 6).denominator * 6}}}}}",
        f"The answer is {(number * 4).numerator}/{(number * 4).denominator * 4}.",
        f"The answer is {plain}%",
    ]
    if number.denominator == 1:
        texts += [f"In total {int(number):,}", f"The answer is {int(number)}.00", f"That is {int(percent)}%"]
    return texts


def perturbed(truth: str, rng: random.Random) -> str:
    """Another number, as near as a slip of the pen."""
    plain = truth.replace(",", "")
    digits = [i for i, sign in enumerate(plain) if sign.isdigit()]
    at = rng.choice(digits)
    slip = plain[:at] + str((int(plain[at]) + rng.randint(1, 9)) % 10) + plain[at + 1 :]
    changed = [Fraction(plain) + rng.choice([-10, -1, 1, 7, 1000]), -Fraction(plain) or Fraction(1), Fraction(slip)]
    other = rng.choice(changed)
    return str(other.numerator) if other.denominator == 1 else str(float(other))


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K files are not there")
def test_gsm8k_answers_are_right_in_every_spelling_and_wrong_when_changed() -> None:
    rng = random.Random(0)
    lines = [line for name in ("train", "test") for line in (GSM8K / f"{name}.jsonl").open(encoding="utf-8")]
    for line in lines:
        solution = json.loads(line)["answer"]
        truth = solution.rpartition("####")[2].strip()
        task = {"ground_truth": solution}
        assert numeric(Sample([solution], {"ground_truth": truth})) == 1
        for text in spellings(perturbed(truth, rng)):
            assert numeric(Sample([text], task)) == 0, (truth, text)
        for text in spellings(truth):
            assert numeric(Sample([text], task)) == 1, (truth, text)
    assert len(lines) > 8000
