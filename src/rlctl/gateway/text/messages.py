"""Chat messages of a client -> what a chat template takes. Checked, so that a bad one is a 400 that says where."""

from typing import Any

import msgspec

from rlctl.gateway.faults import bad, unsupported
from rlctl.gateway.text.template import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Templates know `system`; OpenAI's newer name for it is `developer`."""
KEPT = ("name", "tool_call_id", "reasoning_content", "reasoning")


def normalised(messages: list[dict[str, Any]]) -> list[Message]:
    """Text parts joined, tool arguments as objects (templates write them as JSON again), null fields left out."""
    if not messages:
        raise bad("messages must not be empty", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> Message:
    given = message.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise bad(f"{where}.role must be one of {', '.join(ROLES)}, not {given!r}", "messages")
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and role != "assistant":
        raise bad(f"{where}.content is missing", "messages")
    known: Message = {"role": role, "content": content if isinstance(content, str) else _text(content, where)}
    if calls:
        if not isinstance(calls, list):
            raise bad(f"{where}.tool_calls must be a list", "messages")
        known["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    for field in KEPT:
        if (value := message.get(field)) is not None:
            if not isinstance(value, str):
                raise bad(f"{where}.{field} must be a string", "messages")
            known[field] = value
    if message.get("function_call"):
        raise unsupported("messages", f"{where}.function_call is the old form; use tool_calls")
    return known


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if not isinstance(content, list):
        raise bad(f"{where}.content must be a string or a list of parts", "messages")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise unsupported("messages", f"{where}.content[{i}] has type {kind!r}; this model takes text")
        if not isinstance(part.get(kind), str):
            raise bad(f"{where}.content[{i}].{kind} must be a string", "messages")
        texts.append(part[kind])
    return "\n".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"{where}.function.name is missing", "messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = msgspec.json.decode(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
        except (msgspec.DecodeError, RecursionError):
            pass  # what the model wrote is not JSON: the template gets its very text
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}
