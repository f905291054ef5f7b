"""OpenAI completions (raw prompts): request -> CompletionCall, sampled choices -> reply or chunks. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl.gateway.dialects import (
    END_OF_EVENTS,
    Common,
    Limits,
    Sampled,
    Sampling,
    decode,
    event,
    sampling,
    usage,
)
from rlctl.gateway.faults import bad, unsupported


class CompletionRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST completions."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    return_token_ids: bool | None = None
    """vLLM's: give `token_ids` and `prompt_token_ids` with the answer."""


_decoder = msgspec.json.Decoder(CompletionRequest)


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A checked request."""

    model: str
    prompt: str | list[int]
    sampling: Sampling
    logprobs: int | None
    return_token_ids: bool
    stream: bool
    include_usage: bool


def parse(body: bytes, limits: Limits, vocabulary: int) -> CompletionCall:
    """The request, or Fault 400 that names what is wrong."""
    request = decode(_decoder, body)
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and not all(type(i) is int and 0 <= i < vocabulary for i in prompt):
        raise bad(f"prompt must be one text, or one list of token ids below {vocabulary}", "prompt")
    if not prompt:
        raise bad("prompt must not be empty", "prompt")
    if request.echo:
        raise unsupported("echo", "the prompt is not scored")
    if request.best_of not in (None, 1, request.n):
        raise unsupported("best_of", "every sample is an answer: use n")
    if request.suffix:
        raise unsupported("suffix", "the model writes left to right")
    return CompletionCall(
        request.model or "default",
        prompt,
        sampling(request, limits, request.max_tokens, request.logprobs or 0),
        request.logprobs,
        bool(request.return_token_ids),
        bool(request.stream),
        bool(request.stream_options and request.stream_options.include_usage),
    )


def reply(
    call: CompletionCall, uid: str, created: int, prompt_ids: list[int], sampled: list[Sampled], tokens: Any
) -> bytes:
    """The JSON body of a whole answer."""
    head = {"id": uid, "object": "text_completion", "created": created, "model": call.model}
    choices = [_choice(call, i, one, prompt_ids, tokens) for i, one in enumerate(sampled)]
    return msgspec.json.encode({**head, "choices": choices, "usage": usage(len(prompt_ids), sampled)})


def chunks(
    call: CompletionCall, uid: str, created: int, prompt_ids: list[int], sampled: list[Sampled], tokens: Any
) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    head = {"id": uid, "object": "text_completion", "created": created, "model": call.model}
    for i, one in enumerate(sampled):
        yield event({**head, "choices": [_choice(call, i, one, prompt_ids, tokens)]})
    if call.include_usage:
        yield event({**head, "choices": [], "usage": usage(len(prompt_ids), sampled)})
    yield END_OF_EVENTS


def _choice(call: CompletionCall, index: int, one: Sampled, prompt_ids: list[int], tokens: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "text": one.text, "finish_reason": one.finish_reason, "logprobs": None}
    if call.logprobs is not None:
        choice["logprobs"] = _logprobs(one, tokens)
    if call.return_token_ids:
        choice |= {"token_ids": one.ids, "prompt_token_ids": prompt_ids}
    return choice


def _logprobs(one: Sampled, tokens: Any) -> dict[str, Any]:
    words, offsets, at = [tokens(i) for i in one.ids], [], 0
    for word in words:
        offsets.append(at)
        at += len(word)
    return {"tokens": words, "token_logprobs": one.logprobs, "top_logprobs": one.top, "text_offset": offsets}
