"""Anthropic messages: request -> ChatCall, outcome -> reply or events. Pure. Shapes: Anthropic's API reference.

request block                        the chat template's message
user: tool_result                    tool
user: text                           user
assistant: thinking, text, tool_use  assistant with reasoning_content, content, tool_calls
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from rlctl.gateway.dialects.chat import ChatCall, chosen
from rlctl.gateway.dialects.fields import Common, StreamOptions, decode, options
from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import Begun, Limits, Outcome, Part, Sampled
from rlctl.gateway.text.images import Images
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.speech import Piece, Speech
from rlctl.gateway.text.template import Message


class MessagesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST messages and, without what concerns the answer, of POST messages/count_tokens."""

    messages: list[dict[str, Any]]
    model: str = ""
    max_tokens: int | None = None
    """Anthropic requires it of clients; count_tokens has none."""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(MessagesRequest)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def parse(body: bytes, limits: Limits, speech: Speech, counting: bool = False) -> ChatCall:
    """The request, or Fault 400 that names what is wrong."""
    request = decode(_decoder, body)
    if request.max_tokens is None and not counting:
        raise bad("max_tokens: Field required", "max_tokens")
    if (request.thinking or {}).get("type") == "enabled":
        raise unsupported("thinking", "how long the model thinks is its own choice; use adaptive or leave it out")
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())] or None
    common = Common(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
        stream=request.stream,
        stream_options=StreamOptions(True),
    )
    images = Images(limits.images)
    return ChatCall(
        *options(common, limits, request.max_tokens),
        normalised(_messages(request, images.most > 0), images),
        images.found,
        tools,
        {},
        chosen(speech, tools, _choice(request.tool_choice)),
        False,
    )


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unsupported("tools", f"{where}.type {tool['type']!r} runs at the provider; there is none here")
    if not isinstance(tool.get("name"), str):
        raise bad(f"{where}.name is missing", "tools")
    function = {"name": tool["name"], "description": tool.get("description", "")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema", {})}}


def _choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.get("disable_parallel_tool_use"):
        raise unsupported("tool_choice", "how many calls the model makes is its own choice")
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise bad("tool_choice.type must be auto, any, tool or none", "tool_choice")
    return _CHOICES[kind]


def _messages(request: MessagesRequest, images: bool) -> list[dict[str, Any]]:
    """As chat's messages; `images`: the model takes them."""
    found: list[dict[str, Any]] = []
    if request.system:
        found.append({"role": "system", "content": _texts(request.system, "system")})
    for i, message in enumerate(request.messages):
        role, content = message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise bad(f"messages[{i}].content must be a string or a list of blocks", "messages")
        if role == "assistant":
            found.append(_assistant(blocks, f"messages[{i}]"))
        elif role == "user":
            found += _user(blocks, f"messages[{i}]", images)
        else:
            raise bad(f"messages[{i}].role must be user or assistant, not {role!r}", "messages")
    if found and found[-1]["role"] == "assistant":
        raise unsupported("messages", "an assistant message at the end would be continued; the answer begins anew here")
    return found


def _user(blocks: list[dict[str, Any]], where: str, images: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            result = _texts(block.get("content") or "", f"{where}.content[{i}].content")
            found.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result})
        elif images and block.get("type") == "image":
            parts.append(_image(block, f"{where}.content[{i}]"))
        else:
            parts.append({"type": "text", "text": _text(block, f"{where}.content[{i}]")})
    if parts or not found:
        found.append({"role": "user", "content": parts})
    return found


def _image(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Chat's part for an image block."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        kind = source.get("type") if isinstance(source, dict) else source
        raise unsupported("messages", f"{where}.source.type {kind!r}; images come as base64: nothing is fetched here")
    if not isinstance(source.get("media_type"), str) or not isinstance(source.get("data"), str):
        raise bad(f"{where}.source needs media_type and data", "messages")
    return {"type": "image_url", "image_url": f"data:{source['media_type']};base64,{source['data']}"}


def _assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    texts, calls, thoughts = [], [], []
    for i, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input", {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        else:
            texts.append(_text(block, f"{where}.content[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message


def _texts(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} must be a string or a list of text blocks", "messages")
    return "\n".join(_text(block, f"{where}[{i}]") for i, block in enumerate(content))


def _text(block: Any, where: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        kind = block.get("type") if isinstance(block, dict) else block
        raise unsupported("messages", f"{where} has type {kind!r}; this model takes text")
    if not isinstance(block.get("text"), str):
        raise bad(f"{where}.text must be a string", "messages")
    return str(block["text"])


# ---------------------------------------------------------------- answers


def reply(call: ChatCall, uid: str, outcome: Outcome, tokens: Any) -> bytes:
    """The JSON body of a whole answer."""
    one, given = outcome.sampled[0], outcome.messages[0]
    blocks: list[dict[str, Any]] = []
    if reasoning := given.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    if given["content"]:
        blocks.append({"type": "text", "text": given["content"]})
    blocks += [_use(tool_call) for tool_call in given.get("tool_calls") or ()]
    counts = {"input_tokens": outcome.prompt_tokens, "output_tokens": len(one.ids)}
    head = {"id": uid, "type": "message", "role": "assistant", "model": call.model, "content": blocks}
    return msgspec.json.encode({**head, **_stopped(call, one, given), "usage": counts})


def _use(tool_call: dict[str, Any]) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(tool_call["function"]["arguments"])
    except msgspec.DecodeError:
        value = tool_call["function"]["arguments"]
    arguments = value if isinstance(value, dict) else {"arguments": value}
    return {"type": "tool_use", "id": tool_call["id"], "name": tool_call["function"]["name"], "input": arguments}


def _stopped(call: ChatCall, one: Sampled, given: Message) -> dict[str, Any]:
    if given.get("tool_calls"):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if one.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if one.stopped_by:
        return {"stop_reason": "stop_sequence", "stop_sequence": one.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


class Events:
    """The same answer as server-sent events: blocks that begin, grow and end."""

    def __init__(self, call: ChatCall, uid: str, tokens: Any) -> None:
        self._call, self._uid = call, uid
        self._block, self._kind = -1, ""

    def begin(self, begun: Begun) -> Iterator[bytes]:
        message: dict[str, Any] = {
            "id": f"msg_{self._uid}-{begun.number}",
            "type": "message",
            "role": "assistant",
            "model": self._call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(begun.prompt) // 4, "output_tokens": 0},
        }
        yield named("message_start", {"message": message})

    def piece(self, part: Part, pieces: list[Piece]) -> Iterator[bytes]:
        for kind, text in pieces:
            if kind == "reasoning":
                yield from self._open(kind, {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            else:
                yield from self._open(kind, {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})

    def end(self, outcome: Outcome, rests: list[list[Piece]]) -> Iterator[bytes]:
        one, given = outcome.sampled[0], outcome.messages[0]
        yield from self.piece(Part(0, "", [], []), rests[0])
        for tool_call in given.get("tool_calls") or ():
            use = _use(tool_call)
            yield from self._open(use["id"], {**use, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": msgspec.json.encode(use["input"]).decode()})
        yield from self._close()
        counts = {"output_tokens": len(one.ids)}
        yield named("message_delta", {"delta": _stopped(self._call, one, given), "usage": counts})
        yield named("message_stop", {})

    def fault(self, fault: Fault) -> Iterator[bytes]:
        yield b"event: error\ndata: " + fault.anthropic_body() + b"\n\n"

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if kind != self._kind:
            yield from self._close()
            self._block, self._kind = self._block + 1, kind
            yield named("content_block_start", {"index": self._block, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._kind:
            yield named("content_block_stop", {"index": self._block})
        self._kind = ""

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named("content_block_delta", {"index": self._block, "delta": delta})


def named(name: str, value: dict[str, Any]) -> bytes:
    """One server-sent event with its name, which is its type as well."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode({"type": name, **value}) + b"\n\n"
