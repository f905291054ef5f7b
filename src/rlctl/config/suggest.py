"""`did you mean`: the nearest valid word."""

import difflib
from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like `word`, or None when none is near."""
    found = difflib.get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.5)
    return found[0] if found else None
