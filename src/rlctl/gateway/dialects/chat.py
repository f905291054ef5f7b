"""OpenAI chat completions: request -> ChatCall, outcome -> reply or events. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rlctl.gateway.dialects.fields import END_OF_EVENTS, Call, Common, decode, event, options, usage
from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import Begun, Limits, Outcome, Part, Sampled
from rlctl.gateway.text.images import Images
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.speech import Piece, Speech
from rlctl.gateway.text.template import Message
from rlctl.gateway.text.tools import NONE


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
    separate_reasoning: bool | None = None
    """SGLang's: false leaves `<think>...</think>` in the content."""
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True, slots=True)
class ChatCall(Call):
    """A checked conversation, of whatever dialect."""

    messages: list[Message]
    images: dict[str, bytes]
    """Those that this request brings, by name."""
    tools: list[dict[str, Any]] | None
    switches: dict[str, Any]
    """Of the chat template."""
    speech: Speech
    """How the answer is read."""
    logprobs: bool

    @property
    def setting(self) -> str:
        """What besides the messages shapes the prompt's text."""
        return repr((self.tools, self.switches)) if self.tools or self.switches else ""


def parse(body: bytes, limits: Limits, speech: Speech) -> ChatCall:
    """The request, or Fault 400 that names what is wrong."""
    request = decode(_decoder, body)
    _refuse(request)
    if request.top_logprobs and not request.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    wanted = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    asked = options(request, limits, wanted, request.top_logprobs or 0)
    asked = asked.constrained(response_format(request.response_format))
    if request.separate_reasoning is False:
        speech = replace(speech, thinks=False)
    images = Images(limits.images)
    return ChatCall(
        *asked,
        normalised(request.messages, images),
        images.found,
        request.tools or None,
        request.chat_template_kwargs or {},
        chosen(speech, request.tools, request.tool_choice),
        bool(request.logprobs),
    )


def chosen(speech: Speech, tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> Speech:
    """`speech` for a tool_choice: none, auto, required, or {"type": "function", "function": {"name"}}.

    A required call is begun for the model, in its own syntax, as the end of the prompt; the rest it samples itself.
    """
    names = [_name(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    if choice == "none" or not tools:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice needs tools", "tool_choice")
        return replace(speech, tools=NONE)
    if choice in (None, "auto"):
        return speech
    if speech.tools.lead is None:
        raise unsupported("tool_choice", "this model's chat template knows no tool calls: the model decides (auto)")
    if choice == "required":
        return replace(speech, lead=speech.tools.lead[0])
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if name not in names:
        raise bad(f"tool_choice must be auto, none, required, or name one of the tools: {names}", "tool_choice")
    return replace(speech, lead=speech.tools.lead[1] % name)


def _name(tool: dict[str, Any], where: str) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if tool.get("type") != "function" or not isinstance(name, str):
        raise bad(f'{where} must be {{"type": "function", "function": {{"name", ...}}}}', "tools")
    return name


def response_format(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the engine is asked for: None for free text."""
    if not wanted or wanted.get("type") == "text":
        return None
    if wanted.get("type") not in ("json_schema", "json_object"):
        raise unsupported("response_format", f"type {wanted.get('type')!r}; there are text, json_object, json_schema")
    return wanted


def _refuse(request: ChatRequest) -> None:
    if request.parallel_tool_calls is False and request.tools:
        raise unsupported("parallel_tool_calls", "how many calls the model makes is its own choice")
    if request.reasoning_effort:
        raise unsupported("reasoning_effort", "use chat_template_kwargs if the model's template has such a switch")
    if request.modalities not in (None, ["text"]):
        raise unsupported("modalities", "answers are text")
    if request.store:
        raise unsupported("store", "trajectories are kept by the run, not by request")
    for name in ("messages", "tools", "add_generation_prompt", "documents"):
        if name in (request.chat_template_kwargs or {}):
            raise bad(f"chat_template_kwargs.{name} is set by the gateway", "chat_template_kwargs")


def reply(call: ChatCall, uid: str, outcome: Outcome, tokens: Any) -> bytes:
    """The JSON body of a whole answer; `tokens(id)` is the text of one token (for logprobs)."""
    choices = [
        {
            "index": i,
            "message": {**given, "refusal": None},
            "logprobs": _logprobs(one.ids, one.logprobs, one.top, tokens) if call.logprobs else None,
            "finish_reason": finish_reason(one, given),
        }
        for i, (one, given) in enumerate(zip(outcome.sampled, outcome.messages, strict=True))
    ]
    head = {"id": uid, "object": "chat.completion", "created": outcome.created, "model": call.model}
    counts = usage(outcome.prompt_tokens, outcome.sampled)
    return msgspec.json.encode({**head, "choices": choices, "usage": counts})


class Events:
    """The same answer as server-sent events."""

    def __init__(self, call: ChatCall, uid: str, tokens: Any) -> None:
        self._call, self._uid, self._tokens = call, uid, tokens
        self._extra: dict[str, Any] = {"usage": None} if call.include_usage else {}

    def begin(self, begun: Begun) -> Iterator[bytes]:
        self._head = {
            "id": f"chatcmpl-{self._uid}-{begun.number}",
            "object": "chat.completion.chunk",
            "created": begun.created,
            "model": self._call.model,
        }
        for i in range(self._call.sampling.n):
            yield self._chunk(i, {"role": "assistant", "content": ""})

    def piece(self, part: Part, pieces: list[Piece]) -> Iterator[bytes]:
        deltas = [_delta(piece) for piece in pieces]
        if self._call.logprobs and part.ids:
            logprobs = _logprobs(part.ids, part.logprobs, part.top, self._tokens)
            yield self._chunk(part.index, deltas.pop(0) if deltas else {}, logprobs=logprobs)
        for delta in deltas:
            yield self._chunk(part.index, delta)

    def end(self, outcome: Outcome, rests: list[list[Piece]]) -> Iterator[bytes]:
        for i, (one, given) in enumerate(zip(outcome.sampled, outcome.messages, strict=True)):
            for piece in rests[i]:
                yield self._chunk(i, _delta(piece))
            for number, tool_call in enumerate(given.get("tool_calls") or ()):
                yield self._chunk(i, {"tool_calls": [{"index": number, **tool_call}]})
            yield self._chunk(i, {}, finish_reason(one, given))
        if self._call.include_usage:
            yield event({**self._head, "choices": [], "usage": usage(outcome.prompt_tokens, outcome.sampled)})
        yield END_OF_EVENTS

    def fault(self, fault: Fault) -> Iterator[bytes]:
        yield b"data: " + fault.body() + b"\n\n"

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": reason, **more}
        return event({**self._head, "choices": [choice], **self._extra})


def _delta(piece: Piece) -> dict[str, Any]:
    kind, text = piece
    return {"reasoning_content" if kind == "reasoning" else "content": text}


def finish_reason(one: Sampled, given: Message) -> str:
    """tool_calls where calls were parsed; else the engine's reason."""
    return "tool_calls" if given.get("tool_calls") else one.finish_reason


def _logprobs(ids: Sequence[int], values: Sequence[float], top: Any, tokens: Any) -> dict[str, Any]:
    return {
        "content": [
            {**_token(tokens(i), value), "top_logprobs": [_token(text, v) for text, v in (others or {}).items()]}
            for i, value, others in zip(ids, values, top or [None] * len(ids), strict=True)
        ],
        "refusal": None,
    }


def _token(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode())}
