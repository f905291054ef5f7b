"""Chat templates: messages -> text, as transformers' `apply_chat_template(tokenize=False)` renders it.

Source of the rules: transformers 5, `utils/chat_template_utils.py` (sandbox, filters, globals); equality is tested.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlctl.errors import RlctlError

Message = dict[str, Any]


class TemplateError(RlctlError):
    """The chat template refused this conversation; the message is the template's own."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training masks; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source) if source else None
        self._names = {**environment.globals, **special_tokens, "add_generation_prompt": True, "documents": None}
        self._lists = False
        self._lists = bool(source) and not self._says("?", _PROBE) and self._says("?", _as_parts(_PROBE))

    def render(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None, options: dict[str, Any] = {}
    ) -> str:
        """Text of the conversation with the generation prompt; `options` are the template's own switches."""
        if self._template is None:
            raise TemplateError("this model has no chat template: use /completions, or a model folder with one")
        if self._lists:
            messages = _as_parts(messages)
        names = {**self._names, **options, "messages": messages, "tools": tools or None}
        try:
            context = self._template.new_context(names, shared=True)  # a third less than Template.render
            return "".join(self._template.root_render_func(context))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise TemplateError(f"the chat template refused these messages: {error}") from None

    def _says(self, text: str, messages: Sequence[Message]) -> bool:
        try:
            return text in self.render(messages)
        except TemplateError:
            return False


_PROBE: list[Message] = [{"role": "user", "content": "?"}]
"""Templates of some vision models leave out content that is a string (LLaVA's); theirs is written as parts."""


def _as_parts(messages: Sequence[Message]) -> list[Message]:
    return [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if isinstance(one["content"], str) else one
        for one in messages
    ]


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
