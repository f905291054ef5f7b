"""Arithmetic in answers, exactly, without running anything: + - * / and brackets over whole numbers."""

import ast
from fractions import Fraction

LONGEST = 200


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Value of an expression and the numbers in it, in order; ValueError where it is none."""
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        numbers: list[int] = []
        return _value(tree.body, numbers), numbers
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"no expression: {text!r}") from error
    except ZeroDivisionError:
        raise ValueError(f"divides by zero: {text!r}") from None


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("only whole numbers, + - * / and brackets")
