"""An answer's raw text, as the client gets it: reasoning, content, tool calls; whole, or piece by piece. Pure.

    <think>Let me see.</think>I look it up. <tool_call>{"name": ...}</tool_call>
           -- reasoning --    -- content --  -- call --

While an answer grows, only what no later token can turn into something else is told: not the beginning of a marker, not
white space before a call that may come. What was told is always a prefix of what the whole answer turns out to be.
"""

from dataclasses import dataclass, replace
from typing import Any

from rlctl.gateway.text.tools import FAMILIES as TOOL_FAMILIES
from rlctl.gateway.text.tools import NONE, Family, family_of

THINK, THOUGHT = "<think>", "</think>"
Piece = tuple[str, str]
"""("reasoning" or "content", text)."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How one answer is read."""

    tools: Family = NONE
    thinks: bool = False
    """`<think>...</think>` is reasoning."""
    thinking: bool = False
    """The prompt has already opened it."""
    lead: str = ""
    """What the prompt put into the model's mouth: part of the answer that was not sampled."""


def of_model(chat_template: str) -> Speech:
    """How this model speaks: what its chat template teaches, and whether the template takes reasoning back."""
    thinks = "reasoning_content" in chat_template
    return Speech(TOOL_FAMILIES[family_of(chat_template)], thinks)


def after(speech: Speech, prompt_text: str) -> Speech:
    """`speech` for an answer to this prompt."""
    opened = speech.thinks and prompt_text[-64:].rstrip().endswith(THINK)
    return replace(speech, thinking=True) if opened else speech


def message(text: str, speech: Speech) -> dict[str, Any]:
    """The assistant message of a whole answer: content, and where there are some tool_calls, reasoning_content."""
    reasoning, content = _divided(speech.lead + text, speech)
    try:
        content, calls = speech.tools.parse(content)
    except RecursionError:
        calls = []  # nested beyond what JSON tools take: no call, but content
    given: dict[str, Any] = {"role": "assistant", "content": (content or None) if calls else content}
    if calls:
        given["tool_calls"] = calls
    if reasoning:
        given["reasoning_content"] = reasoning
    return given


class Teller:
    """Tells one growing answer."""

    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        self._text = speech.lead
        self._told = {"reasoning": 0, "content": 0}
        self._quiet = False

    def hear(self, text: str) -> list[Piece]:
        """New text; the pieces that are certain by now."""
        self._text += text
        return [] if self._quiet else self._news(*self._certain())

    def hush(self) -> None:
        """Nothing more is told before the end: a control token was sampled, and its letters are not in the text."""
        self._quiet = True

    def rest(self, given: dict[str, Any]) -> list[Piece]:
        """What is left to tell of the whole answer."""
        return self._news(given.get("reasoning_content") or "", given["content"] or "")

    def _news(self, reasoning: str, content: str) -> list[Piece]:
        pieces = []
        for kind, text in (("reasoning", reasoning), ("content", content)):
            if len(text) > self._told[kind]:
                pieces.append((kind, text[self._told[kind] :]))
                self._told[kind] = len(text)
        return pieces

    def _certain(self) -> Piece:
        speech, text = self._speech, self._text
        if speech.thinks and not speech.thinking and THINK.startswith(begun := text.lstrip()) and begun != THINK:
            return "", ""
        reasoning, content = _divided(text, speech)
        if reasoning and THOUGHT not in text:
            return _without_beginning_of(reasoning, (THOUGHT,)), ""
        return reasoning, _before_calls(content, speech.tools)


def _divided(text: str, speech: Speech) -> Piece:
    """(reasoning, content) of a text; without the closing mark all of it is reasoning."""
    if not speech.thinks or not (speech.thinking or text.lstrip().startswith(THINK)):
        return "", text
    body = text if speech.thinking else text.lstrip().removeprefix(THINK)
    reasoning, _, content = body.partition(THOUGHT)
    return reasoning, content.lstrip("\n")


def _before_calls(content: str, tools: Family) -> str:
    """The part of `content` that no tool call can claim, whatever comes."""
    if not tools.markers:
        return content
    begun = content.lstrip()
    if tools.whole and (not begun or begun.startswith(tools.whole)):
        return ""
    ends = [at for marker in tools.markers if (at := content.find(marker)) >= 0]
    if ends:
        return content[: min(ends)].rstrip()
    return _without_beginning_of(content, tools.markers).rstrip()


def _without_beginning_of(text: str, words: tuple[str, ...]) -> str:
    """`text` without an end that may become one of `words`."""
    longest = max((size for word in words for size in range(1, len(word)) if text.endswith(word[:size])), default=0)
    return text[: len(text) - longest] if longest else text
