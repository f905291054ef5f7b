"""OpenAI chat completions: request -> ChatCall, sampled choices -> reply or chunks. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl.gateway import tools as tool_syntax
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
from rlctl.gateway.messages import normalised
from rlctl.gateway.template import Message


class ChatRequest(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: switches of the chat template, such as enable_thinking."""
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A checked request."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]
    parse_tools: bool
    sampling: Sampling
    logprobs: bool
    stream: bool
    include_usage: bool

    @property
    def setting(self) -> str:
        """What besides the messages shapes the prompt's text."""
        return repr((self.tools, self.options)) if self.tools or self.options else ""


def parse(body: bytes, limits: Limits) -> ChatCall:
    """The request, or Fault 400 that names what is wrong."""
    request = decode(_decoder, body)
    _refuse(request)
    if request.top_logprobs and not request.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    wanted = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    return ChatCall(
        request.model or "default",
        normalised(request.messages),
        request.tools or None,
        request.chat_template_kwargs or {},
        bool(request.tools) and request.tool_choice != "none",
        sampling(request, limits, wanted, request.top_logprobs or 0),
        bool(request.logprobs),
        bool(request.stream),
        bool(request.stream_options and request.stream_options.include_usage),
    )


def _refuse(request: ChatRequest) -> None:
    if request.tool_choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "the model decides (auto) or makes no calls (none)")
    if request.parallel_tool_calls is False and request.tools:
        raise unsupported("parallel_tool_calls", "how many calls the model makes is its own choice")
    if request.response_format and request.response_format.get("type") != "text":
        raise unsupported("response_format", "answers are free text")
    if request.reasoning_effort:
        raise unsupported("reasoning_effort", "use chat_template_kwargs if the model's template has such a switch")
    if request.modalities not in (None, ["text"]):
        raise unsupported("modalities", "answers are text")
    if request.store:
        raise unsupported("store", "trajectories are kept by the run, not by request")
    for name in ("messages", "tools", "add_generation_prompt", "documents"):
        if name in (request.chat_template_kwargs or {}):
            raise bad(f"chat_template_kwargs.{name} is set by the gateway", "chat_template_kwargs")


def message(call: ChatCall, text: str, parser: tool_syntax.Parser) -> dict[str, Any]:
    """The assistant message given to the client for a response's text."""
    content, calls = parser(text) if call.parse_tools else (text, [])
    if not calls:
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def reply(
    call: ChatCall,
    uid: str,
    created: int,
    prompt_tokens: int,
    sampled: list[Sampled],
    messages: list[Message],
    tokens: Any,
) -> bytes:
    """The JSON body of a whole answer; `tokens(id)` is the text of one token (for logprobs)."""
    choices = [
        {
            "index": i,
            "message": {**given, "refusal": None},
            "logprobs": _logprobs(one, tokens) if call.logprobs else None,
            "finish_reason": finish_reason(one, given),
        }
        for i, (one, given) in enumerate(zip(sampled, messages, strict=True))
    ]
    head = {"id": uid, "object": "chat.completion", "created": created, "model": call.model}
    return msgspec.json.encode({**head, "choices": choices, "usage": usage(prompt_tokens, sampled)})


def chunks(
    call: ChatCall,
    uid: str,
    created: int,
    prompt_tokens: int,
    sampled: list[Sampled],
    messages: list[Message],
    tokens: Any,
) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    head = {"id": uid, "object": "chat.completion.chunk", "created": created, "model": call.model}
    extra = {"usage": None} if call.include_usage else {}
    for i, (one, given) in enumerate(zip(sampled, messages, strict=True)):
        for part, (delta, reason) in enumerate(_deltas(one, given)):
            choice = {"index": i, "delta": delta, "finish_reason": reason}
            if call.logprobs and part == 1:
                choice["logprobs"] = _logprobs(one, tokens)
            yield event({**head, "choices": [choice], **extra})
    if call.include_usage:
        yield event({**head, "choices": [], "usage": usage(prompt_tokens, sampled)})
    yield END_OF_EVENTS


def _deltas(one: Sampled, given: Message) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": ""}, None
    yield {"content": given["content"] or ""}, None
    for number, tool_call in enumerate(given.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": number, **tool_call}]}, None
    yield {}, finish_reason(one, given)


def finish_reason(one: Sampled, given: Message) -> str:
    """tool_calls where calls were parsed; else the engine's reason."""
    return "tool_calls" if given.get("tool_calls") else one.finish_reason


def _logprobs(one: Sampled, tokens: Any) -> dict[str, Any]:
    top = one.top or [None] * len(one.ids)
    return {
        "content": [
            {**_token(tokens(i), value), "top_logprobs": [_token(text, v) for text, v in (others or {}).items()]}
            for i, value, others in zip(one.ids, one.logprobs, top, strict=True)
        ],
        "refusal": None,
    }


def _token(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode())}
