"""One conversation in every dialect: chat messages in and out, the official clients in between.

A conversation is kept as chat messages; each call turns it into the dialect's own form, so that an agent may ask the
next question in another dialect than the last.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

Message = dict[str, Any]
LOOK = {"name": "look", "description": "See.", "parameters": {"type": "object"}}
AGAIN = {"x-stainless-retry-count": "1"}
"""What the official clients send with a retry."""


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    uid: str
    messages: tuple[Message, ...]
    """One per choice."""

    @property
    def number(self) -> int:
        """step_index of the first choice: the last part of the id."""
        return int(self.uid.rpartition("-")[2])


@dataclass
class Ask:
    """One call."""

    dialect: str
    """chat | responses | messages"""
    history: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 40
    temperature: float = 1.0
    stop: list[str] = field(default_factory=list)
    n: int = 1
    stream: bool = False
    previous: str = ""
    """Responses only: the id of the response that all of `history` but its last messages belongs to."""
    news: int = 0
    """How many those last messages are."""
    headers: dict[str, str] = field(default_factory=dict)


class Clients:
    """The official clients, with one connection pool."""

    def __init__(self) -> None:
        fields: dict[str, Any] = {"base_url": "http://127.0.0.1", "api_key": "none", "max_retries": 0, "timeout": 120}
        self._openai, self._anthropic = openai.AsyncOpenAI(**fields), anthropic.AsyncAnthropic(**fields)

    def of(self, base_url: str) -> tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]:
        """Both for one trajectory."""
        return self._openai.with_options(base_url=base_url), self._anthropic.with_options(
            base_url=base_url.removesuffix("/v1")
        )

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()


Pair = tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]


async def ask(clients: Pair, call: Ask) -> Answer:
    """The answer, by the dialect's own client."""
    return await {"chat": _chat, "responses": _responses, "messages": _messages}[call.dialect](clients, call)


# ---------------------------------------------------------------- chat completions


async def _chat(clients: Pair, call: Ask) -> Answer:
    fields: dict[str, Any] = {"n": call.n} if call.n > 1 else {}
    if call.tools:
        fields["tools"] = [{"type": "function", "function": tool} for tool in call.tools]
    if call.stop:
        fields["stop"] = call.stop
    asked = clients[0].chat.completions.create(
        model="m",
        messages=call.history,
        max_tokens=call.max_tokens,
        temperature=call.temperature,
        stream=call.stream,
        extra_headers=call.headers,
        **fields,
    )
    if call.stream:
        return await _put_together(await asked, call.n)
    whole = await asked
    return Answer(whole.id, tuple(_said(one.message.model_dump()) for one in whole.choices))


def _said(message: Message) -> Message:
    kept = {name: message[name] for name in ("content", "tool_calls") if message.get(name)}
    return {"role": "assistant", "content": "", **kept}


async def _put_together(chunks: Any, count: int) -> Answer:
    found: list[Message] = [{"role": "assistant", "content": ""} for _ in range(count)]
    reasons: dict[int, str] = {}
    uid = ""
    async for chunk in chunks:
        uid = chunk.id
        for choice in chunk.choices:
            message, delta = found[choice.index], choice.delta
            message["content"] += delta.content or ""
            for call in delta.tool_calls or ():
                function = {"name": call.function.name, "arguments": call.function.arguments}
                message.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert sorted(reasons) == list(range(count)), "a stream ends each of its choices"
    return Answer(uid, tuple(found))


# ---------------------------------------------------------------- responses


async def _responses(clients: Pair, call: Ask) -> Answer:
    history = call.history[-call.news :] if call.previous else call.history
    fields: dict[str, Any] = {"previous_response_id": call.previous} if call.previous else {}
    if call.tools:
        fields["tools"] = [{"type": "function", **tool} for tool in call.tools]
    asked = clients[0].responses.create(
        model="m",
        input=[item for message in history for item in _items(message)],
        max_output_tokens=call.max_tokens,
        temperature=call.temperature,
        stream=call.stream,
        extra_headers=call.headers,
        **fields,
    )
    if not call.stream:
        return _response(await asked)
    texts, last = "", None
    async for event in await asked:
        if event.type == "response.output_text.delta":
            texts += event.delta
        last = event
    assert last is not None and last.type in ("response.completed", "response.incomplete"), last
    assert texts == last.response.output_text, "the deltas are the whole text"
    return _response(last.response)


def _items(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    if message["role"] != "assistant":
        return [{"type": "message", "role": message["role"], "content": message["content"]}]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", ())
    ]
    text = {"type": "output_text", "text": message["content"]}
    spoken = [{"type": "message", "role": "assistant", "content": [text]}] if message["content"] or not calls else []
    return spoken + calls


def _response(whole: Any) -> Answer:
    message: Message = {"role": "assistant", "content": whole.output_text}
    calls = [
        {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in whole.output
        if one.type == "function_call"
    ]
    return Answer(whole.id, ({**message, "tool_calls": calls} if calls else message,))


# ---------------------------------------------------------------- Anthropic messages


async def _messages(clients: Pair, call: Ask) -> Answer:
    system = [message["content"] for message in call.history if message["role"] == "system"]
    fields: dict[str, Any] = {
        "model": "m",
        "messages": [_turn(message) for message in call.history if message["role"] != "system"],
        "max_tokens": call.max_tokens,
        "extra_body": {"temperature": call.temperature},
        "extra_headers": call.headers,
    }
    if system:
        fields["system"] = system[0]
    if call.tools:
        renamed = [{**tool, "input_schema": tool["parameters"]} for tool in call.tools]
        fields["tools"] = [{k: v for k, v in tool.items() if k != "parameters"} for tool in renamed]
    if call.stop:
        fields["stop_sequences"] = call.stop
    if call.stream:
        async with clients[1].messages.stream(**fields) as events:
            whole = await events.get_final_message()
    else:
        whole = await clients[1].messages.create(**fields)
    message: Message = {"role": "assistant", "content": "".join(b.text for b in whole.content if b.type == "text")}
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
        for b in whole.content
        if b.type == "tool_use"
    ]
    return Answer(whole.id, ({**message, "tool_calls": calls} if calls else message,))


def _turn(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    if message["role"] == "user":
        return {"role": "user", "content": message["content"]}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        use = json.loads(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": use})
    return {"role": "assistant", "content": blocks}
