"""OpenAI responses: request -> ChatCall, outcome -> reply. Pure. Shapes: OpenAI's API reference. Events: next module.

input item                    the chat template's message
message                       its own
reasoning, message,           one assistant message, as long as nothing of the other side comes between
  function_call ...
function_call_output          tool
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl.gateway.dialects.chat import ChatCall, chosen, response_format
from rlctl.gateway.dialects.fields import Common, StreamOptions, decode, options
from rlctl.gateway.faults import bad, unsupported
from rlctl.gateway.sampling import Limits, Outcome, Sampled
from rlctl.gateway.text.images import Images, names
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.speech import Speech
from rlctl.gateway.text.template import Message


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`text` of a request."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST responses."""

    input: str | list[dict[str, Any]]
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    truncation: str | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


_decoder = msgspec.json.Decoder(ResponsesRequest)


@dataclass(frozen=True, slots=True)
class ResponsesCall(ChatCall):
    """A checked conversation with what its reply repeats."""

    request: ResponsesRequest
    conversation: list[Message]
    """Without the instructions, which the next response does not take over."""


def previous(body: bytes) -> str:
    """The response this request follows, or ''."""
    return decode(_decoder, body).previous_response_id or ""


def parse(body: bytes, limits: Limits, speech: Speech, earlier: list[Message]) -> ResponsesCall:
    """The request, or Fault 400 that names what is wrong; `earlier` is the conversation up to the previous response."""
    request = decode(_decoder, body)
    _refuse(request)
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())] or None
    images = Images(limits.images, count=len(names(earlier)))
    conversation = earlier + normalised(_items(request.input, images.most > 0), images)
    opening: list[Message] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    common = Common(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        stream=request.stream,
        stream_options=StreamOptions(True),
    )
    asked = options(common, limits, request.max_output_tokens)
    return ResponsesCall(
        *asked.constrained(_format(request.text.format if request.text else None)),
        opening + conversation,
        images.found,
        tools,
        {},
        chosen(speech, tools, _choice(request.tool_choice)),
        False,
        request,
        conversation,
    )


def _refuse(request: ResponsesRequest) -> None:
    if request.text and request.text.verbosity not in (None, "medium"):
        raise unsupported("text", "how much the model says is its own choice")
    if request.background:
        raise unsupported("background", "answers come on the connection that asked for them")
    if request.truncation not in (None, "disabled"):
        raise unsupported("truncation", "nothing is cut here: too long is an error")
    if request.parallel_tool_calls is False and request.tools:
        raise unsupported("parallel_tool_calls", "how many calls the model makes is its own choice")
    if any((request.reasoning or {}).values()):
        raise unsupported("reasoning", "how the model thinks is its own choice")
    unknown = [name for name in request.include or () if name != "reasoning.encrypted_content"]
    if unknown:
        raise unsupported("include", f"{unknown[0]} does not exist here")


def _format(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    """text.format is chat's response_format with the schema's fields one level up."""
    if wanted and wanted.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {k: v for k, v in wanted.items() if k != "type"}}
    return response_format(wanted)


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported("tools", f"{where}.type {tool.get('type')!r} runs at the provider; there are functions here")
    if not isinstance(tool.get("name"), str):
        raise bad(f"{where}.name is missing", "tools")
    kept = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _items(given: str | list[dict[str, Any]], images: bool) -> list[dict[str, Any]]:
    """As chat's messages; `images`: the model takes them."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[dict[str, Any]] = []
    spoken: dict[str, Any] | None = None
    for i, item in enumerate(given):
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "function_call_output":
            output = _parts(item.get("output"), f"input[{i}].output")
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
            spoken = None
        elif kind == "message" and item.get("role") != "assistant":
            read = _said_to_us if images else _parts
            found.append({"role": item.get("role"), "content": read(item.get("content"), f"input[{i}].content")})
            spoken = None
        elif kind in ("message", "function_call", "reasoning"):
            if spoken is None:
                found.append(spoken := {"role": "assistant", "content": ""})
            _said(spoken, kind, item, f"input[{i}]")
        else:
            raise unsupported("input", f"input[{i}] has type {kind!r}; there are messages, functions and reasoning")
    return found


def _said(spoken: dict[str, Any], kind: str, item: dict[str, Any], where: str) -> None:
    if kind == "message":
        spoken["content"] += _parts(item.get("content"), f"{where}.content")
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        spoken.setdefault("tool_calls", []).append(call)
    elif thoughts := _parts(item.get("content") or "", f"{where}.content"):
        spoken["reasoning_content"] = spoken.get("reasoning_content", "") + thoughts


def _said_to_us(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Text, or where there are images, chat's parts."""
    if not isinstance(content, list) or not any(_is_image(part) for part in content):
        return _parts(content, where)
    parts = []
    for i, part in enumerate(content):
        if not _is_image(part):
            parts.append({"type": "text", "text": _parts([part], where)})
        elif part.get("file_id"):
            raise unsupported("input", f"{where}[{i}].file_id: no files are stored here; use a data: URL")
        else:
            parts.append({"type": "image_url", "image_url": part.get("image_url"), "detail": part.get("detail")})
    return parts


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _parts(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} must be a string or a list of parts", "input")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text", "reasoning_text", "text"):
            raise unsupported("input", f"{where}[{i}] has type {kind!r}; this model takes text")
        if not isinstance(part.get("text"), str):
            raise bad(f"{where}[{i}].text must be a string", "input")
        texts.append(part["text"])
    return "\n".join(texts)


# ---------------------------------------------------------------- answers


def reply(call: ResponsesCall, uid: str, outcome: Outcome, tokens: Any) -> bytes:
    """The JSON body of a whole answer."""
    return msgspec.json.encode(response(call, uid, outcome.created, outcome))


def response(call: ResponsesCall, uid: str, created: int, outcome: Outcome | None) -> dict[str, Any]:
    """The response object; without an outcome as it is while it is made."""
    request = call.request
    one = outcome.sampled[0] if outcome else None
    cut = one is not None and one.finish_reason == "length"
    return {
        "id": uid,
        "object": "response",
        "created_at": created,
        "model": call.model,
        "status": "in_progress" if one is None else "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": request.instructions,
        "previous_response_id": request.previous_response_id,
        "max_output_tokens": request.max_output_tokens,
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "tools": request.tools or [],
        "tool_choice": request.tool_choice or "auto",
        "parallel_tool_calls": True,
        "text": request.text or {"format": {"type": "text"}},
        "truncation": "disabled",
        "metadata": request.metadata or {},
        "output": items(uid, outcome.messages[0]) if outcome else [],
        "usage": _usage(outcome.prompt_tokens, one) if outcome and one else None,
    }


def items(uid: str, given: Message) -> list[dict[str, Any]]:
    """Output items of an answer."""
    found = []
    if reasoning := given.get("reasoning_content"):
        found.append(reasoning_item(uid, reasoning))
    if given["content"] or not given.get("tool_calls"):
        found.append(message_item(uid, given["content"] or ""))
    return found + [function_item(call) for call in given.get("tool_calls") or ()]


def reasoning_item(uid: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{uid}", "type": "reasoning", "summary": [], "content": content, "status": "completed"}


def message_item(uid: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": f"msg_{uid}", "type": "message", "role": "assistant", "status": "completed", "content": content}


def function_item(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    item = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"], "status": "completed"}
    return {**item, "name": function["name"], "arguments": function["arguments"]}


def _usage(prompt_tokens: int, one: Sampled) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(one.ids),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + len(one.ids),
    }
