"""Tool calls in the model's text, per model family: text -> (content, calls), and the words that begin a call.

A family is one value; `family_of` picks it by what the chat template teaches the model to write. Formats are those of
the models' own chat templates (Hermes 2 Pro and Qwen, Llama 3.1, Mistral v3 and v11).
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ToolCall = dict[str, Any]
"""OpenAI's {"id", "type": "function", "function": {"name", "arguments": JSON text}}."""
Parser = Callable[[str], tuple[str, list[ToolCall]]]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models writes tool calls."""

    parse: Parser
    markers: tuple[str, ...] = ()
    """A call begins at one of these words; text before it is content."""
    whole: str = ""
    """Text that begins with this is a call from its first letter."""
    lead: tuple[str, str] | None = None
    """What an answer is made to begin with when a call is required: of any tool; of a named one, `%s` its name."""


def hermes(text: str) -> tuple[str, list[ToolCall]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen). What does not parse stays content."""
    content, calls, at = "", [], 0
    while (start := text.find(OPEN, at)) >= 0:
        end = text.find(CLOSE, start)
        call = _call(_json(text[start + len(OPEN) : end if end >= 0 else len(text)]))
        stop = end + len(CLOSE) if end >= 0 else len(text)
        content += text[at:start] if call else text[at:stop]
        if call:
            calls.append(call)
        at = stop
    content += text[at:]
    return (content.rstrip() if calls else content), calls


def llama3(text: str) -> tuple[str, list[ToolCall]]:
    """The whole answer is `{"name": ..., "parameters": {...}}`, or several apart by `;` (Llama 3.1, 3.2)."""
    calls: list[ToolCall] = []
    rest = text.strip().removeprefix(PYTHON_TAG)
    while rest := rest.lstrip("; \n\t"):
        try:
            value, end = _decoder.raw_decode(rest)
        except (json.JSONDecodeError, RecursionError):
            return text, []
        if (call := _call(value)) is None:
            return text, []
        calls.append(call)
        rest = rest[end:]
    return ("", calls) if calls else (text, [])


def mistral(text: str) -> tuple[str, list[ToolCall]]:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` once per call."""
    content, *parts = text.split(TOOL_CALLS)
    calls: list[ToolCall | None] = []
    for part in parts:
        name, named, arguments = part.partition(ARGS)
        if named:
            value = _json(arguments)
            calls.append(_call({"name": name.strip(), "arguments": value}) if isinstance(value, dict) else None)
        else:
            value = _json(part)
            calls += [_call(one) for one in value] if isinstance(value, list) else [_call(value)]
    good = [call for call in calls if call is not None]
    return (content.rstrip(), good) if good and len(good) == len(calls) else (text, [])


def none(text: str) -> tuple[str, list[ToolCall]]:
    """A model whose template knows no tools."""
    return text, []


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None


def _call(value: Any) -> ToolCall | None:
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


NONE = Family(none)
FAMILIES: dict[str, Family] = {
    "hermes": Family(hermes, (OPEN,), lead=(f'{OPEN}\n{{"name": "', f'{OPEN}\n{{"name": "%s", "arguments": ')),
    "llama3": Family(llama3, (PYTHON_TAG,), "{", lead=('{"name": "', '{"name": "%s", "parameters": ')),
    "mistral": Family(
        mistral, (TOOL_CALLS,), lead=(f'{TOOL_CALLS}[{{"name": "', f'{TOOL_CALLS}[{{"name": "%s", "arguments": ')
    ),
    "none": NONE,
}


def family_of(chat_template: str) -> str:
    """Name of the family whose tool syntax this chat template teaches."""
    if OPEN in chat_template:
        return "hermes"
    if TOOL_CALLS in chat_template:
        return "mistral"
    if PYTHON_TAG in chat_template or ('"parameters": ' in chat_template and "ipython" in chat_template):
        return "llama3"
    return "none"
