"""`search:PATH`: passages of a local corpus by BM25 (Robertson and Zaragoza 2009). Pure but for reading the files.

score(q, d) = sum over words w of q of idf(w) f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|)),
idf(w) = ln(1 + (N - n(w) + 0.5) / (n(w) + 0.5)), with k1 = 1.2 and b = 0.75.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rlctl.agents.tools.tool import Json, Tool, one_text, text_argument
from rlctl.errors import ConfigError

K1, B = 1.2, 0.75
HITS = 3
LONGEST = 1000
"""Characters of one passage that are shown."""
_WORD = re.compile(r"\w+")


class Passage(NamedTuple):
    title: str
    text: str


class Index:
    """Passages and where each word stands."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._where: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for number, passage in enumerate(passages):
            counts = Counter(words(f"{passage.title} {passage.text}"))
            lengths.append(counts.total())
            for word, count in counts.items():
                self._where[word].append((number, count))
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        self._norms = [K1 * (1 - B + B * length / mean) for length in lengths]

    def best(self, query: str, hits: int = HITS) -> list[Passage]:
        """Passages with the highest scores, earlier ones first among equals; none without a common word."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(words(query)):
            found = self._where.get(word, [])
            idf = math.log(1 + (len(self._passages) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                scores[number] += idf * count * (K1 + 1) / (count + self._norms[number])
        order = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._passages[number] for number in order[:hits]]


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def read(path: Path) -> list[Passage]:
    """Passages of a JSONL file ({"text", "title"?} a line), or of a folder's .txt and .md files, cut at blank lines."""
    if not path.exists():
        raise ConfigError(f"search:{path}: there is no such file or folder")
    found = list(_lines(path) if path.is_file() else _folder(path))
    if not found:
        raise ConfigError(f"search:{path}: no passages; wanted JSONL with a key text, or a folder of .txt or .md files")
    return found


def _lines(path: Path) -> Iterator[Passage]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                yield Passage(str(row.get("title", "")), row["text"])
            except (ValueError, KeyError, AttributeError) as error:
                raise ConfigError(f'search:{path}:{number}: expected {{"text": ..., "title": ...}}') from error


def _folder(path: Path) -> Iterator[Passage]:
    for file in sorted([*path.rglob("*.txt"), *path.rglob("*.md")]):
        for part in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            if part.strip():
                yield Passage(file.name, part.strip())


def search(path: Path) -> Tool:
    index = Index(read(path))

    async def call(arguments: Json) -> str:
        hits = index.best(text_argument(arguments, "query"))
        shown = [f"[{n}] {hit.title}\n{hit.text[:LONGEST]}".replace("] \n", "]\n") for n, hit in enumerate(hits, 1)]
        return "\n\n".join(shown) or "nothing found"

    return Tool("search", f"Find the {HITS} best passages of the corpus.", one_text("query", "a few words"), call)
