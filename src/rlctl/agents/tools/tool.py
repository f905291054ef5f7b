"""What a tool is. A tool that fails is a message to the model, not an error of the episode."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


class ToolFailed(Exception):
    """A call that gave no result; its text is what the model reads."""


@dataclass(frozen=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str
    parameters: Json
    """JSON schema of the arguments."""
    call: Callable[[Json], Awaitable[str]]
    """Arguments -> what the model reads; ToolFailed."""

    @property
    def spec(self) -> Json:
        """As a chat completion is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def one_text(name: str, description: str) -> Json:
    """Schema of a tool with a single argument, a text."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name],
        "additionalProperties": False,
    }


def text_argument(arguments: Json, name: str) -> str:
    """That argument; ToolFailed where it is missing or no text."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolFailed(f"expected an argument {name!r} of type string")
    return value
