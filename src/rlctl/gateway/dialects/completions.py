"""OpenAI completions (raw prompts): request -> CompletionCall, outcome -> reply or events. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl.gateway.dialects.fields import END_OF_EVENTS, Call, Common, decode, event, options, usage
from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import Begun, Limits, Outcome, Part, Sampled
from rlctl.gateway.text.speech import Piece


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
class CompletionCall(Call):
    """A checked request."""

    prompt: str | list[int]
    logprobs: int | None
    return_token_ids: bool


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
    asked = options(request, limits, request.max_tokens, request.logprobs or 0)
    return CompletionCall(*asked, prompt, request.logprobs, bool(request.return_token_ids))


def reply(call: CompletionCall, uid: str, outcome: Outcome, tokens: Any) -> bytes:
    """The JSON body of a whole answer."""
    prompt = memoryview(outcome.prompt).cast("i").tolist()
    head = {"id": uid, "object": "text_completion", "created": outcome.created, "model": call.model}
    choices = [_choice(call, i, one, prompt, tokens) for i, one in enumerate(outcome.sampled)]
    return msgspec.json.encode({**head, "choices": choices, "usage": usage(len(prompt), outcome.sampled)})


class Events:
    """The same answer as server-sent events."""

    def __init__(self, call: CompletionCall, uid: str, tokens: Any) -> None:
        self._call, self._uid, self._tokens = call, uid, tokens

    def begin(self, begun: Begun) -> Iterator[bytes]:
        self._prompt = memoryview(begun.prompt).cast("i").tolist()
        self._head = {
            "id": f"cmpl-{self._uid}-{begun.number}",
            "object": "text_completion",
            "created": begun.created,
            "model": self._call.model,
        }
        return iter(())

    def piece(self, part: Part, pieces: list[Piece]) -> Iterator[bytes]:
        text = "".join(text for _, text in pieces)
        wanted = part.ids and (self._call.return_token_ids or self._call.logprobs is not None)
        if text or wanted:
            sampled = Sampled(text, part.ids, part.logprobs, "", part.top)
            yield self._chunk(_choice(self._call, part.index, sampled, self._prompt, self._tokens))

    def end(self, outcome: Outcome, rests: list[list[Piece]]) -> Iterator[bytes]:
        for i, one in enumerate(outcome.sampled):
            text = "".join(text for _, text in rests[i])
            last = Sampled(text, [], [], one.finish_reason)
            yield self._chunk(_choice(self._call, i, last, self._prompt, self._tokens))
        if self._call.include_usage:
            yield event({**self._head, "choices": [], "usage": usage(len(self._prompt), outcome.sampled)})
        yield END_OF_EVENTS

    def fault(self, fault: Fault) -> Iterator[bytes]:
        yield b"data: " + fault.body() + b"\n\n"

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice]})


def _choice(call: CompletionCall, index: int, one: Sampled, prompt_ids: list[int], tokens: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "text": one.text, "logprobs": None}
    choice["finish_reason"] = one.finish_reason or None
    if call.logprobs is not None:
        choice["logprobs"] = _logprobs(one, tokens)
    if call.return_token_ids:
        choice |= {"token_ids": list(one.ids), "prompt_token_ids": prompt_ids}
    return choice


def _logprobs(one: Sampled, tokens: Any) -> dict[str, Any]:
    words, offsets, at = [tokens(i) for i in one.ids], [], 0
    for word in words:
        offsets.append(at)
        at += len(word)
    return {"tokens": words, "token_logprobs": list(one.logprobs), "top_logprobs": one.top, "text_offset": offsets}
