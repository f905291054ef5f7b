"""Rules `(response, truth) -> right or not`.

exact    the same text (spaces at the ends do not count)
numeric  the same number, wherever the answer is marked (see rlctl.rules.numbers)
"""

from collections.abc import Callable

from rlctl.rules.numbers import answer, same

Rule = Callable[[str, str], bool]


def exact(response: str, truth: str) -> bool:
    return response.strip() == truth.strip()


def numeric(response: str, truth: str) -> bool:
    """ValueError when `truth` has no number."""
    wanted = answer(truth)
    if wanted is None:
        raise ValueError(f"{truth!r} has no number")
    given = answer(response)
    return given is not None and same(given, wanted)


RULES: dict[str, Rule] = {"exact": exact, "numeric": numeric}
