"""Chat messages of a client -> what a chat template takes. Checked, so that a bad one is a 400 that says where."""

from typing import Any

import msgspec

from rlctl.gateway.faults import bad, unsupported
from rlctl.gateway.text.images import Images
from rlctl.gateway.text.template import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Templates know `system`; OpenAI's newer name for it is `developer`."""
KEPT = ("name", "tool_call_id", "reasoning_content", "reasoning")


def normalised(messages: list[dict[str, Any]], images: Images | None = None) -> list[Message]:
    """Text parts joined, tool arguments as objects (templates write them as JSON again), null fields left out.

    Content with images stays a list of parts; their bytes are left in `images`.
    """
    if not messages:
        raise bad("messages must not be empty", "messages")
    images = images or Images(0)
    return [_message(message, f"messages[{i}]", images) for i, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str, images: Images) -> Message:
    given = message.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise bad(f"{where}.role must be one of {', '.join(ROLES)}, not {given!r}", "messages")
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and role != "assistant":
        raise bad(f"{where}.content is missing", "messages")
    if not isinstance(content, str):
        content = _parts(content, where, images if role == "user" else Images(0))
    known: Message = {"role": role, "content": content}
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


def _parts(content: Any, where: str, images: Images) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if not isinstance(content, list):
        raise bad(f"{where}.content must be a string or a list of parts", "messages")
    parts: list[dict[str, str]] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url" and images.most:
            parts.append(images.part(part, f"{where}.content[{i}]"))
            continue
        if kind not in ("text", "refusal"):
            takes = "a user's message takes text and images" if images.most else "this model takes text"
            raise unsupported("messages", f"{where}.content[{i}] has type {kind!r}; {takes}")
        if not isinstance(part.get(kind), str):
            raise bad(f"{where}.content[{i}].{kind} must be a string", "messages")
        parts.append({"type": "text", "text": part[kind]})
    if any(part["type"] == "image" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


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
