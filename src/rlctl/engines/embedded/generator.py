"""Continuous batching: sequences join and leave at every step.

    waiting --admit--> rows of the batch        (KV of the session's earlier turns is still in its row)
                         |
        step:   prefill  | rows with more than one token to compute: new prompts, and every row after new weights
                decode   | all rows with one token to compute, together
                         v
    finished <-- stop token, stop text, length  (the row is parked for the session's next turn)

New weights are taken between two steps: kept KV is dropped, and every running row is prefilled again with the new
weights before its next token is sampled. So each token comes wholly from the weights whose version it carries.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rlctl.engines.embedded.batch import Batch, padded_groups, same_prompts
from rlctl.engines.embedded.kv import Inputs, Running, Sessions, Shape, cut_runs
from rlctl.engines.embedded.sampler import sample
from rlctl.engines.embedded.sequences import Sequence
from rlctl.telemetry.phases import Phases

PREFILL_TOKENS = 4096
"""Padded tokens of one prefill forward pass."""


class Forward(Protocol):
    """A model over a `Running` cache (see `lean.Lean`)."""

    shape: Shape

    def load(self, weights: Mapping[str, Tensor]) -> None: ...

    def forward(self, inputs: Inputs, cache: Running) -> Tensor: ...


class Generator:
    """Scheduler and model together; not thread-safe: one caller at a time."""

    def __init__(
        self,
        model: Forward,
        max_context: int,
        max_running: int,
        cache_tokens: int,
        seed: int = 0,
        decode_text: Callable[[list[int]], str] = lambda ids: "",
    ) -> None:
        self.model = model
        self.max_context = max_context
        self.cache_tokens = max(cache_tokens, max_context)
        self.decode_text = decode_text
        self.version = 0
        self.waiting: deque[Sequence] = deque()
        self.batch = Batch(max_running, seed)
        self.running = Running(model.shape, self.cache_tokens)
        self.sessions = Sessions()
        self.phases = Phases()
        self.counts = dict.fromkeys(
            ("prompt_tokens", "reused_tokens", "recomputed_tokens", "generated_tokens", "steps", "finished", "aborted"),
            0,
        )

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or self.batch.size > 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; prompt and max_tokens together must fit `max_context` (ValueError)."""
        if sequence.room > self.max_context or not len(sequence.prompt):
            raise ValueError(f"prompt and max_tokens are {sequence.room} tokens; 1 to {self.max_context} are possible")
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence where it is; nothing happens to one that is over."""
        if sequence.finish:
            return
        sequence.finish = "abort"
        self.counts["aborted"] += 1
        if sequence.row >= 0:
            self.batch.leave(sequence)
        else:
            self.waiting.remove(sequence)

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Continue with new weights (see the module); on BadWeights the old ones stay."""
        with self.phases("load"), torch.inference_mode():
            self.model.load(weights)
            self.sessions.clear()
            self.batch.unpark(*range(len(self.batch.rows)))
            self.version = version
            for sequence in self.batch.sequences:
                sequence.cached = 0

    def step(self) -> list[Sequence]:
        """Sample at least one token for every running row; the sequences that are over now."""
        finished: list[Sequence] = []
        self.counts["steps"] += 1
        with torch.inference_mode():
            with self.phases("prefill"):
                self._admit()
                pending = [
                    (s, s.length - s.cached) for s in self.batch.sequences if s.length - s.cached > 1 or not s.response
                ]
                leaders, followers = same_prompts(pending)
            for group in padded_groups(leaders, PREFILL_TOKENS):
                finished += self._prefill_and_sample(group)
            if followers:
                for follower, row in followers:
                    self._share(follower, row)
                finished += self._prefill_and_sample([follower for follower, _ in followers])
            if len(rows := self.batch.active):
                with self.phases("decode"):
                    logits = self._decode(rows)
                finished += self._sample(logits, rows)
        return finished

    def _prefill_and_sample(self, group: list[Sequence]) -> list[Sequence]:
        with self.phases("prefill"):
            group = sorted(group, key=lambda s: s.row)
            rows = np.array([s.row for s in group])
            logits = self._prefill(group)
        return self._sample(logits, rows)

    def _share(self, follower: Sequence, row: int) -> None:
        """Take over the KV that was just computed in `row` for the same prompt, up to its last token."""
        with self.phases("prefill"):
            follower.cached = len(follower.prompt) - 1
            self.running.share(row, follower.row, follower.cached)
            self.counts["reused_tokens"] += follower.cached - follower.reused
            follower.reused = follower.cached

    def _reserve(self, length: int) -> None:
        """Room for all rows, each up to `length` or what it holds; parked sessions move out where it would not fit."""
        length = max([length, *(s.length for s in self.batch.sequences)])
        needed = max(length, self.sessions.longest)
        if len(self.batch.rows) * needed > self.cache_tokens:
            while self.sessions.parked:
                self.batch.unpark(self._release())
            needed = length
        self.running.reserve(len(self.batch.rows), needed)
        self.sessions.shrink(self._block_budget)

    @property
    def _block_budget(self) -> int:
        """Tokens that sessions outside the running block may have."""
        return max(self.cache_tokens - self.running.tokens, 0)

    def _release(self) -> int:
        return self.sessions.release(self.running, self._block_budget)

    def _row(self, longest: int) -> int:
        """A row for a new sequence: a free one, one more, or that of the session parked longest ago."""
        if (hole := self.batch.hole()) >= 0:
            return hole
        rows = len(self.batch.rows)
        fits = (rows + 1) * max(longest, self.sessions.longest) <= self.cache_tokens
        if self.sessions.parked and not (fits and rows < self.batch.max_rows):
            return self._release()
        return rows

    @property
    def kv_usage(self) -> float:
        """Share of the cache that running sequences claim, 0 to 1: rows times longest. Idle sessions give way."""
        longest = max((s.room for s in self.batch.sequences), default=0)
        return len(self.batch.sequences) * longest / self.cache_tokens

    def _admit(self) -> None:
        """Waiting sequences into free rows, as long as rows times longest stays within the cache."""
        joined: list[tuple[Sequence, Tensor | None]] = []
        longest = max((s.room for s in self.batch.sequences), default=0)
        while self.waiting and self.batch.free:
            sequence = self.waiting[0]
            longest = max(longest, sequence.room)
            if self.batch.sequences and (len(self.batch.sequences) + 1) * longest > self.cache_tokens:
                break
            self.waiting.popleft()
            idle, sequence.reused = self.sessions.take(sequence.session, sequence.prompt)
            self.batch.join(sequence, idle.row if idle and idle.row >= 0 else self._row(longest))
            joined.append((sequence, idle.block if idle else None))
        if not joined:
            return
        self._reserve(0)
        for sequence, block in joined:
            sequence.cached = sequence.reused
            if block is not None and sequence.reused:
                self.running.load(sequence.row, block, sequence.reused)
            self.counts["prompt_tokens"] += len(sequence.prompt)
            self.counts["reused_tokens"] += sequence.reused

    def _prefill(self, group: list[Sequence]) -> Tensor:
        """Compute all tokens of these rows that have no KV yet; logits `[B, V]` after the last one of each."""
        new = [s.ids(s.cached, s.length) for s in group]
        longest = max(map(len, new))
        ids = np.zeros((len(group), longest), np.int64)
        starts = np.array([s.cached for s in group])
        for i, tokens in enumerate(new):
            ids[i, : len(tokens)] = tokens
        # Padding stands after its row's tokens, where nothing looks before the real token there has overwritten it;
        # the last position is never computed, because a sequence that long is over.
        positions = np.minimum(starts[:, None] + np.arange(longest), self.max_context - 1)
        self._reserve(min(int(starts.max()) + longest, self.max_context))
        last = np.array([len(tokens) - 1 for tokens in new])
        rows = np.array([s.row for s in group])
        for sequence, tokens in zip(group, new, strict=True):
            self.counts["recomputed_tokens"] += len(tokens) if sequence.response else 0
            sequence.cached = sequence.length
        return self._forward(ids, positions, rows, last)

    def _decode(self, rows: np.ndarray) -> Tensor:
        """One token of each of `rows [B]`; logits `[B, V]`."""
        ids, positions = self.batch.token[rows, None], self.batch.position[rows, None]
        self._reserve(int(positions.max()) + 1)
        for sequence in self.batch.sequences:
            sequence.cached = sequence.length
        return self._forward(ids, positions, rows, np.zeros(len(rows), np.int64))

    def _forward(self, ids: np.ndarray, positions: np.ndarray, rows: np.ndarray, last: np.ndarray) -> Tensor:
        device = self.model.shape.device
        moved = [torch.from_numpy(array).to(device) for array in (ids, positions, rows, last)]
        lengths = positions[np.arange(len(rows)), last] + 1
        runs = cut_runs(rows.tolist(), lengths.tolist())
        return self.model.forward(Inputs(moved[0], moved[1], moved[2], moved[3], runs), self.running)

    def _sample(self, logits: Tensor, rows: np.ndarray) -> list[Sequence]:
        """Sample a token for each of `rows [B]`; the sequences that are over with it."""
        with self.phases("sample"):
            device = logits.device
            uniform = torch.from_numpy(self.batch.uniform(rows)).to(device)
            drawn, drawn_logprobs = sample(logits, self.batch.settings(rows, device), uniform)
            tokens, logprobs = drawn.tolist(), drawn_logprobs.tolist()
            finished = []
            for row, token, logprob in zip(rows.tolist(), tokens, logprobs, strict=True):
                sequence = self.batch.rows[row]
                if sequence is None:
                    continue
                self.batch.position[row] = sequence.length
                self.batch.token[row] = token
                sequence.append(token, logprob, self.version)
                if sequence.sampling.stop:
                    self._stop_at_text(sequence)
                if sequence.on_token is not None:
                    sequence.on_token(sequence)
                self.counts["generated_tokens"] += 1
                if sequence.finish:
                    finished.append(sequence)
            for sequence in finished:
                self._retire(sequence)
        return finished

    def _stop_at_text(self, sequence: Sequence) -> None:
        """End the sequence when its text holds a stop text; its text ends before that."""
        text = self.decode_text(sequence.response)
        places = [place for stop in sequence.sampling.stop if (place := text.find(stop)) >= 0]
        sequence.text = text[: min(places)] if places else text
        if places:
            sequence.finish = "stop"

    def _retire(self, sequence: Sequence) -> None:
        self.counts["finished"] += 1
        if not sequence.session:
            self.batch.leave(sequence)
            return
        row = sequence.row
        before = self.sessions.park(sequence.session, sequence.ids(0, sequence.cached), row)
        self.batch.leave(sequence, parked=True)
        if before >= 0:
            self.batch.unpark(before)
