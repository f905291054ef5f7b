"""Tool calls in the model's text, per model family: text -> (content, calls).

A family is one function; `family_of` picks it by what the chat template teaches the model to write.
"""

import json
import uuid
from collections.abc import Callable
from typing import Any

ToolCall = dict[str, Any]
"""OpenAI's {"id", "type": "function", "function": {"name", "arguments": JSON text}}."""
Parser = Callable[[str], tuple[str, list[ToolCall]]]

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes(text: str) -> tuple[str, list[ToolCall]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen). What does not parse stays content."""
    content, calls, at = "", [], 0
    while (start := text.find(OPEN, at)) >= 0:
        end = text.find(CLOSE, start)
        call = _call(text[start + len(OPEN) : end if end >= 0 else len(text)])
        stop = end + len(CLOSE) if end >= 0 else len(text)
        content += text[at:start] if call else text[at:stop]
        if call:
            calls.append(call)
        at = stop
    content += text[at:]
    return (content.rstrip() if calls else content), calls


def none(text: str) -> tuple[str, list[ToolCall]]:
    """A model whose template knows no tools."""
    return text, []


def _call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


FAMILIES: dict[str, Parser] = {"hermes": hermes, "none": none}


def family_of(chat_template: str) -> str:
    """Name of the family whose tool syntax this chat template teaches."""
    return "hermes" if OPEN in chat_template else "none"
