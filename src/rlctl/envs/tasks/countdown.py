"""Countdown: write an expression that uses every given number once and has the given value (one answer).

Rewards as RAGEN's: 1 for the value, 0.1 for the right numbers with another value, else 0. Our instances are drawn by
seed so that a solution in whole numbers exists.
"""

import random
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import NamedTuple

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs import text
from rlctl.envs.base import Instance, Rate, Skip
from rlctl.envs.exchange import Exchange, Verdict, opening
from rlctl.envs.seeded import Seeded
from rlctl.rules.expressions import evaluate

RIGHT_NUMBERS = 0.1
RULES = (
    "Write an expression that has the target as its value. Use every number exactly once, with + - * / and brackets."
)


class Puzzle(NamedTuple):
    numbers: tuple[int, ...]
    target: int
    solution: str


class Countdown(Seeded):
    """All puzzles of one [[env]]."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.Countdown.model_validate(env.options)

    def instance(self, seed: int) -> Instance | Skip:
        options, luck = self.options, random.Random(f"countdown {seed}")
        drawn = [luck.randint(1, options.largest) for _ in range(luck.choice(options.numbers))]
        value, solution = drawn[0], str(drawn[0])
        for number in drawn[1:]:
            sign = luck.choice("+-*/" if value % number == 0 else "+-*")
            value = {"+": value + number, "-": value - number, "*": value * number, "/": value // number}[sign]
            closed = solution if sign in "+-" or solution.isdigit() else f"({solution})"
            solution = f"{closed}{sign}{number}"
        if not 1 <= value <= options.largest_target:
            return Skip("no_instance")
        luck.shuffle(drawn)
        key = f"{' '.join(map(str, drawn))} = {value}"
        return Instance(key, seed, Puzzle(tuple(drawn), value, solution), 1)

    def episode(self, instance: Instance, stream: int) -> Exchange:
        return Exchange(self.env, self._opening(instance), lambda answer, turn: self._judge(answer, instance.payload))

    def demonstrate(self, instance: Instance, number: int = 0, thoughts: bool = False) -> Exchange:
        puzzle: Puzzle = instance.payload
        episode = self.episode(instance, number)
        thought = f"{puzzle.solution} = {puzzle.target}." if thoughts else ""
        episode.feed(text.answer(self.env, [puzzle.solution], thought))
        return episode

    def task(self, instance: Instance) -> dict[str, str]:
        return {"question": instance.key, "ground_truth": str(instance.payload.target)}

    def floor(self, instance: Instance, actions: int) -> Rate:
        """A player that joins two of the numbers that are left by a random operation, until one is left."""
        puzzle: Puzzle = instance.payload
        return Rate(float(chance(tuple(sorted(map(Fraction, puzzle.numbers))), Fraction(puzzle.target))), True)

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        return Rate(1.0, True)

    def _opening(self, instance: Instance) -> list[text.Message]:
        if self.env.style == "compact":
            return opening("", instance.key)
        puzzle: Puzzle = instance.payload
        asked = f"{RULES}\nNumbers: {', '.join(map(str, puzzle.numbers))}\nTarget: {puzzle.target}\n"
        return opening(text.SYSTEM, asked + text.format_asked_for(self.env, "expression"))

    def _judge(self, answer: str, puzzle: Puzzle) -> Verdict:
        body = text.body(answer, self.env)
        try:
            value, numbers = evaluate(body or "")
        except ValueError:
            return Verdict(0.0, invalid=True)
        if sorted(numbers) != sorted(puzzle.numbers):
            return Verdict(0.0)
        right = value == puzzle.target
        return Verdict(1.0 if right else RIGHT_NUMBERS, success=right)


@cache
def _joined(a: Fraction, b: Fraction) -> tuple[tuple[Fraction, int], ...]:
    """Results of joining two numbers, with their weights in eighths; a division by zero has none."""
    found = [(a + b, 2), (a - b, 1), (b - a, 1), (a * b, 2)]
    found += [(a / b, 1)] if b else []
    found += [(b / a, 1)] if a else []
    return tuple(found)


def chance(numbers: tuple[Fraction, ...], target: Fraction) -> Fraction:
    """Probability that random joining ends in `target`."""
    if len(numbers) == 1:
        return Fraction(numbers[0] == target)
    total, pairs = Fraction(0), list(combinations(range(len(numbers)), 2))
    for i, j in pairs:
        rest = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
        for value, weight in _joined(numbers[i], numbers[j]):
            total += weight * chance((*rest, value), target)
    return total / (8 * len(pairs))
