"""A model call in the words that dialects, sessions and engines share: how to sample, and what was sampled."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl.gateway.faults import too_long
from rlctl.gateway.text.template import Message


@dataclass(frozen=True)
class Limits:
    """Bounds and defaults of a model call, from [rollout], [gateway], [model]."""

    temperature: float
    top_p: float
    response_length: int
    """Default and upper bound of max_tokens."""
    prompt_length: int
    max_context: int
    images: int = 0
    """Most images of one conversation; 0: the model takes text."""


class Sampling(msgspec.Struct, frozen=True):
    """How the engine is asked to sample."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    """0: the default, as much as fits."""
    n: int
    stop: list[str]
    stop_token_ids: list[int]
    seed: int | None
    top_logprobs: int
    """Alternatives per token besides the sampled one."""
    response_format: dict[str, Any] | None = None
    """OpenAI's json_schema or json_object, for engines that constrain the sampling."""


class Sampled(msgspec.Struct, frozen=True):
    """One choice as the engine returned it."""

    text: str
    """Without the end token."""
    ids: Sequence[int]
    """A list where an answer is read, an array of int32 where it is kept."""
    logprobs: Sequence[float]
    """A list, or an array of float64."""
    finish_reason: str
    """stop | length | abort"""
    top: list[dict[str, float] | None] | None = None
    """Alternatives per token: text -> logprob."""
    stopped_by: str = ""
    """Which of the request's `stop` texts ended it."""


def fitted(asked: Sampling, prompt_tokens: int, limits: Limits) -> Sampling:
    """`asked` with max_tokens set; 400 context_length_exceeded where prompt and response do not fit."""
    if prompt_tokens > limits.prompt_length:
        raise too_long(prompt_tokens, limits.prompt_length, "the prompt")
    room = limits.max_context - prompt_tokens
    if asked.max_tokens > room or room < 1:
        raise too_long(prompt_tokens + max(1, asked.max_tokens), limits.max_context, "prompt and response together")
    return msgspec.structs.replace(asked, max_tokens=asked.max_tokens or min(limits.response_length, room))


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of a call when the engine is asked."""

    number: int
    """step_index of the first choice."""
    created: int
    """Unix seconds."""
    prompt: bytes
    """int32 ids."""


@dataclass(frozen=True, slots=True)
class Part:
    """New tokens of one choice of a streamed answer."""

    index: int
    text: str
    ids: Sequence[int]
    logprobs: Sequence[float]
    top: list[dict[str, float] | None] | None = None
    hush: bool = False
    """A control token is among them whose letters the engine left out of the text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answered call, as the dialects need it."""

    number: int
    """step_index of the first choice."""
    created: int
    """Unix seconds."""
    prompt: bytes
    """int32 ids the engine saw."""
    sampled: list[Sampled]
    messages: list[Message]
    acknowledged: asyncio.Future[None]
    """Done when the pool has the Steps."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // 4
