"""One sequence being generated, as the scheduler sees it; no torch here."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How one sequence is sampled and when it stops."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0: the most likely token; its logprob is then that of the distribution at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    stop_ids: frozenset[int] = frozenset()
    """Sampling one of these ends the sequence; the token is part of the response."""
    stop: tuple[str, ...] = ()
    """Texts that end the sequence; the token that completed one is part of the response's ids, not of its text."""
    seed: int | None = None
    """The same seed gives the same tokens at equal weights, whatever else runs."""

    @property
    def filtered(self) -> bool:
        """Whether the distribution is cut (and so has to be sorted)."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(eq=False)
class Sequence:
    """Prompt, response so far, and where its KV stands."""

    prompt: np.ndarray
    """int32 `[P]`."""
    sampling: Sampling
    session: str = ""
    """Requests of one session reuse each other's KV."""
    on_token: Callable[["Sequence"], None] | None = None
    """Called after every token (streaming)."""
    row: int = -1
    """Row of the batch; -1: waiting or over."""
    cached: int = 0
    """Leading tokens of prompt + response whose KV is in the row."""
    response: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(version, tokens that were there before its first one), in order."""
    reused: int = 0
    """Prompt tokens that needed no computing because their KV was still there."""
    finish: str = ""
    """stop | length | abort; empty while it runs."""
    text: str | None = None
    """Response text, only kept up to date when there are stop texts."""
    draws: np.random.Generator | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)

    @property
    def room(self) -> int:
        """Longest this sequence can get, in tokens."""
        return len(self.prompt) + self.sampling.max_tokens

    def ids(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start:stop` of prompt + response."""
        prompt = self.prompt[start:stop]
        first = max(0, start - len(self.prompt))
        rest = self.response[first : max(0, stop - len(self.prompt))]
        return np.concatenate([prompt, np.array(rest, dtype=np.int32)]) if rest else prompt

    def append(self, token: int, logprob: float, version: int) -> None:
        """Take a sampled token; sets `finish` when it is the last one."""
        if not self.marks or self.marks[-1][0] != version:
            self.marks.append((version, len(self.response)))
        self.response.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_ids:
            self.finish = "stop"
        elif len(self.response) >= self.sampling.max_tokens:
            self.finish = "length"

    def versions(self) -> list[tuple[int, int]]:
        """Run-length policy versions of the response, `[(version, tokens), ...]`."""
        ends = [start for _, start in self.marks[1:]] + [len(self.response)] * bool(self.marks)
        return [(version, end - start) for (version, start), end in zip(self.marks, ends, strict=True)]


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter
