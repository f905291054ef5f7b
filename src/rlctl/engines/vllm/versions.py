"""Which policy version each sampled token came from, as vLLM counts it, brought to the HTTP response.

vLLM labels every engine step with the weight version it ran on and cuts a finished output into spans of equal label
(`CompletionOutput.weight_versions`); its completions endpoint leaves them out. So the engine client's `generate` is
wrapped: outputs made on behalf of an HTTP request note their spans in that request's `Told`, found through a context
variable.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

Told = list[dict[int, Sequence["Span"]]]
"""One entry per prompt of the request: choice index -> its spans."""

TOLD: ContextVar[Told | None] = ContextVar("rlctl_told", default=None)


class Span(Protocol):
    """Output tokens [start, end) of one weight version (vllm.outputs.WeightVersionSpan)."""

    version: str
    start: int
    end: int


def track(generate: Callable[..., Any]) -> Callable[..., Any]:
    """`generate` of vLLM's engine client, noting the spans of finished outputs in TOLD."""

    @functools.wraps(generate)
    def tracked(*args: Any, **kwargs: Any) -> Any:
        told = TOLD.get()
        stream = generate(*args, **kwargs)
        return stream if told is None else _noting(stream, told)

    return tracked


async def _noting(stream: Any, told: Told) -> AsyncIterator[Any]:
    spans: dict[int, Sequence[Span]] = {}
    told.append(spans)
    async with contextlib.aclosing(stream):
        async for output in stream:
            for choice in output.outputs:
                if choice.weight_versions is not None:
                    spans[choice.index] = choice.weight_versions
            yield output


def header(told: Told) -> str:
    """`X-Policy-Versions`: run lengths VERSION:TOKENS of each choice, choices separated by `;`, e.g. 3:17,4:47;4:9."""
    choices = [spans[index] for spans in told for index in sorted(spans)]
    return ";".join(",".join(f"{span.version}:{span.end - span.start}" for span in spans) for spans in choices)


def tokens(told: Told) -> int:
    """Output tokens of all choices."""
    return sum(span.end - span.start for spans in told for choice in spans.values() for span in choice)
