"""One model call, from a placed prompt to Steps on the pool's disk.

    admit -> place (session) -> fit (limits) -> sample (engine) -> commit (session) -> submit (pool) -> outcome

The call goes on when its client goes away: the tokens are paid for, the Step is kept, and the client's retry gets it.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlctl.gateway.faults import Fault, bad
from rlctl.gateway.routing.upstream import Completion, Upstream
from rlctl.gateway.sampling import Begun, Limits, Outcome, Part, Sampled, Sampling, fitted
from rlctl.gateway.sessions.pictures import Pictures
from rlctl.gateway.sessions.record import Recorder
from rlctl.gateway.sessions.session import Prompt, Session
from rlctl.gateway.sessions.trajectories import Live, Trajectories
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.template import Message
from rlctl.gateway.tracing import Tracing
from rlctl.wire.arrays import pack_ids
from rlctl.wire.samples import Step

PHASES = ("template", "tokenize", "engine", "pool")
Place = Callable[[Session], Prompt]
Answered = Callable[[str, str], Message | None]
"""(text of the prompt, text of a response) -> the message the client gets (None: the dialect has no messages)."""


class Feed(Protocol):
    """Where a streamed answer goes (dialects.streaming.Feed)."""

    def begin(self, begun: Begun) -> None: ...
    def add(self, part: Part) -> None: ...


@dataclass(slots=True)
class Counts:
    """What happened, for /metrics and metrics/gateway.jsonl."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and HTTP status."""
    forks: Counter[str] = field(default_factory=Counter)
    """Steps by fork reason."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Wall seconds by phase."""
    steps: int = 0
    replays: int = 0
    prompt_tokens: int = 0
    encoded_tokens: int = 0
    """Prompt tokens that had to be encoded; the others were known."""
    response_tokens: int = 0


class Calls:
    """Runs model calls."""

    def __init__(
        self,
        trajectories: Trajectories,
        upstream: Upstream,
        recorder: Recorder,
        codec: Codec,
        limits: Limits,
        counts: Counts,
        timeout_s: float,
        pictures: Pictures,
        tracing: Tracing | None = None,
    ) -> None:
        self.trajectories = trajectories
        self.upstream = upstream
        self.recorder = recorder
        self.codec = codec
        self.limits = limits
        self.counts = counts
        self.timeout_s = timeout_s
        self.pictures = pictures
        self.tracing = tracing
        self._background: set[asyncio.Task[None]] = set()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run on when the client goes away."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def run(
        self, live: Live, place: Place, asked: Sampling, answered: Answered, feed: Feed | None = None
    ) -> Outcome:
        """Sample and hand the Steps over (`kept` waits for the pool). Fault: there is no answer, and no Step.

        With a `feed` the engine streams into it.
        """
        self.recorder.admit()
        seconds = self.counts.seconds
        started, rendering = time.perf_counter(), seconds["template"]
        session = live.session
        prompt = place(session)
        wanted, asked = asked, fitted(asked, len(prompt.ids) // 4, self.limits)
        placed = time.perf_counter()
        seconds["tokenize"] += placed - started - (seconds["template"] - rendering)
        begun = Begun(session.reserve(prompt, asked.n), int(time.time()), prompt.ids)
        if feed:
            feed.begin(begun)
        live.running += 1
        try:
            completion = await self._sample(live, prompt, wanted, asked, begun.number, feed)
            seconds["engine"] += time.perf_counter() - placed
            return self._commit(live, prompt, asked, begun, completion, answered)
        finally:
            live.running -= 1
            live.seen = time.monotonic()
            if not live.running:
                live.quiet.set()

    async def kept(self, outcome: Outcome) -> None:
        """Wait until the pool has the Steps; Fault 503 when that takes longer than a call may."""
        started = time.perf_counter()
        done, _ = await asyncio.wait([outcome.acknowledged], timeout=self.timeout_s)
        self.counts.seconds["pool"] += time.perf_counter() - started
        if not done:
            raise Fault(503, "the pool does not answer; the step is kept, ask again", "pool_away", retry_after_s=2)
        outcome.acknowledged.result()

    async def _sample(
        self, live: Live, prompt: Prompt, wanted: Sampling, asked: Sampling, first: int, feed: Feed | None
    ) -> Completion:
        """`asked` is `wanted` with max_tokens set. Fault: the step indices are free again."""
        marked: set[int] = set()

        def tell(part: Part) -> None:
            special = [i in self.codec.special for i in part.ids]
            hush = part.index in marked or any(special[:-1])
            if any(special):
                marked.add(part.index)
            if feed:
                feed.add(replace(part, hush=True) if hush else part)

        try:
            images = await self.pictures.read(prompt.images) if prompt.images else ()
            completion = await self.upstream.complete(
                live.session.uid, live.session.prompt_uid, prompt.ids, asked, tell if feed else None, images
            )
            if len(completion.sampled) != asked.n:
                raise Fault(
                    502, f"{completion.engine} gave {len(completion.sampled)} of {asked.n} choices", "engine_protocol"
                )
            if asked.top_logprobs and any(one.top is None for one in completion.sampled):
                raise Fault(
                    400,
                    f"top_logprobs: {completion.engine} does not give them",
                    "unsupported_parameter",
                    "top_logprobs",
                )
            if images:
                self._check_seen(prompt, wanted, completion)
        except BaseException:
            for hole in live.session.release(prompt, first, asked.n):
                self._fill(live, prompt, asked, hole)
            raise
        return completion

    def _check_seen(self, prompt: Prompt, wanted: Sampling, completion: Completion) -> None:
        """How long a prompt is with its images only the engine can say, and whether it extends what is known."""
        if completion.prompt is None:
            raise Fault(502, f"{completion.engine} does not tell the prompt with its images", "engine_protocol")
        fitted(wanted, len(completion.prompt), self.limits)
        if prompt.parent and not pack_ids(completion.prompt).startswith(prompt.parent.seen()):
            why = "the model wrote the token of an image itself, and a new image cannot be told from it"
            raise bad(f"{why}; go on without a further image, or in a new trajectory", "messages", "image_token")

    def _commit(
        self, live: Live, prompt: Prompt, asked: Sampling, begun: Begun, completion: Completion, answered: Answered
    ) -> Outcome:
        texts = [self._text(one, asked.stop) for one in completion.sampled]
        messages = [answered(prompt.text, text) for text in texts]
        ids = [array("i", one.ids) for one in completion.sampled]
        packed = [one.tobytes() for one in ids]
        shielded = [self.codec.shield(text) for text in texts]
        seen, new, expanded = prompt.ids, prompt.new, None
        if completion.prompt is not None:
            seen = pack_ids(completion.prompt)
            expanded = new = seen[len(prompt.parent.seen()) if prompt.parent else 0 :]
        live.session.commit(prompt, begun.number, list(zip(packed, shielded, messages, strict=True)), expanded)
        kept = [
            Sampled(text, own, array("d", one.logprobs), one.finish_reason, one.top, self._stopped_by(one, asked.stop))
            for one, own, text in zip(completion.sampled, ids, texts, strict=True)
        ]
        acknowledged = self._submit(live, prompt, new, asked, begun.number, completion, packed)
        self.counts.prompt_tokens += len(seen) // 4
        self.counts.encoded_tokens += len(new) // 4
        given = [message for message in messages if message is not None]
        return Outcome(begun.number, begun.created, seen, kept, given, acknowledged)

    def _submit(
        self,
        live: Live,
        prompt: Prompt,
        new: bytes,
        asked: Sampling,
        first: int,
        completion: Completion,
        packed: list[bytes],
    ) -> asyncio.Future[None]:
        steps = []
        for offset, (one, versions) in enumerate(zip(completion.sampled, completion.versions, strict=True)):
            reason = "choice" if offset else prompt.fork
            if reason:
                self.counts.forks[reason] += 1
            self.counts.response_tokens += len(one.ids)
            steps.append(
                Step(
                    trajectory_uid=live.session.uid,
                    step_index=first + offset,
                    prompt_ids=new,
                    response_ids=packed[offset],
                    logprobs=array("f", one.logprobs).tobytes(),
                    versions=versions,
                    parent=prompt.parent.index if prompt.parent else -1,
                    fork_reason=reason,
                    finish_reason=one.finish_reason,
                    temperature=asked.temperature,
                    prompt_uid=live.session.prompt_uid,
                    channel=live.channel,
                    engine=completion.engine,
                    images=prompt.new_images,
                )
            )
        return self._hand_over(live, steps)

    def _fill(self, live: Live, prompt: Prompt, asked: Sampling, index: int) -> None:
        """A failed call whose index a later one has passed leaves an empty Step, so that indices have no holes."""
        parent = prompt.parent.index if prompt.parent else -1
        step = Step(
            live.session.uid, index, prompt.new, b"", b"", [], parent, "failed", "abort", asked.temperature,
            live.session.prompt_uid, live.channel, images=prompt.new_images,
        )  # fmt: skip
        self.counts.forks["failed"] += 1
        self._hand_over(live, [step])

    def _hand_over(self, live: Live, steps: list[Step]) -> asyncio.Future[None]:
        live.recorded += len(steps)
        self.counts.steps += len(steps)
        acknowledged = self.recorder.submit(steps)
        if self.tracing is not None:
            self.tracing.submitted(steps, acknowledged)
        return acknowledged

    def _text(self, one: Sampled, stops: list[str]) -> str:
        """The response's text without the end token: from the engine, or decoded here where control tokens are in it,
        whose letters engines leave out.
        """
        end = self.codec.special.get(one.ids[-1], "") if one.ids else ""
        ids = one.ids[:-1] if end else one.ids
        if ids and (not one.text or not self.codec.special.keys().isdisjoint(ids)):
            text = self.codec.decode(ids)
            cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
            return text[: min(cuts)] if cuts else text
        return one.text.removesuffix(end) if end else one.text

    def _stopped_by(self, one: Sampled, stops: list[str]) -> str:
        if not stops or one.finish_reason != "stop" or not one.ids or one.ids[-1] in self.codec.special:
            return ""
        text = self.codec.decode(one.ids)
        found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else ""
