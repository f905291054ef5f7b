"""An environment of the package verifiers, for the preset verifiers-cpu: spell a word backwards.

Reward: how much of the word stands there in the right order (difflib's ratio, 0 to 1).
"""

import random
from difflib import SequenceMatcher
from typing import Any

import verifiers
from datasets import Dataset


def load_environment(words: int = 500, letters: int = 4) -> Any:
    """`words` words of `letters` different letters a to h."""
    luck = random.Random(0)
    made = ["".join(luck.sample("abcdefgh", letters)) for _ in range(words)]
    rows = [{"prompt": [{"role": "user", "content": word}], "answer": word[::-1]} for word in made]

    def alike(completion: Any, answer: str) -> float:
        return SequenceMatcher(None, completion[-1]["content"].strip(), answer).ratio()

    return verifiers.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=verifiers.Rubric(funcs=[alike]))
