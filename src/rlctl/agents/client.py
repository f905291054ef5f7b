"""A lean OpenAI chat client for the built-in agents: one HTTP session, retries by cause, errors as one type."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from rlctl.errors import RlctlError

RETRYABLE = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed; the gateway makes sure that a repeat is no second turn."""


class CallFailed(RlctlError):
    """A model call that did not succeed."""

    def __init__(self, cause: str, detail: str, code: str = "") -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        """A short name to count by: timeout, connection, http_502, bad_reply."""
        self.code = code
        """The gateway's own error code, e.g. context_length_exceeded."""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | int | None = None


class _Errors(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""
    """JSON, as the model wrote it."""


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: Function
    type: str = "function"


class Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct, frozen=True):
    message: Message
    finish_reason: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """The part of a chat completion that the built-in agents read."""

    choices: list[Choice]

    @property
    def text(self) -> str:
        return self.choices[0].message.content or ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.choices[0].message.tool_calls or []

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason or ""


_encode = msgspec.json.Encoder().encode
_reply = msgspec.json.Decoder(Reply).decode
_errors = msgspec.json.Decoder(_Errors).decode
GATEWAY_FIELDS = {"model": "policy", "separate_reasoning": False}
"""What our own gateway is sent with every call: the environments read `<think>` themselves."""
_JSON = {"Content-Type": "application/json"}


class Client:
    """Calls to a gateway; use as an async context manager."""

    def __init__(
        self, timeout_s: float, retries: int, key: str = "", fields: Mapping[str, Any] = GATEWAY_FIELDS
    ) -> None:
        """`key` goes into the Authorization header; `fields` into every chat completion, e.g. another `model`."""
        self._headers = {**_JSON, "Authorization": f"Bearer {key}"} if key else _JSON
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._retries = retries
        self._fields = fields

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._http = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def chat(self, base_url: str, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Reply:
        """One chat completion; CallFailed when it cannot be had."""
        body = await self._post(f"{base_url}/chat/completions", {**self._fields, "messages": messages, **sampling})
        try:
            return _reply(body)
        except msgspec.DecodeError as error:
            raise CallFailed("bad_reply", str(error)) from error

    async def complete(self, base_url: str, end: dict[str, Any]) -> None:
        """Tell the gateway that the episode is over."""
        await self._post(f"{base_url}/complete_trajectory", end)

    async def _post(self, url: str, payload: dict[str, Any]) -> bytes:
        data = _encode(payload)
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(min(0.2 * 2**attempt, 5.0))
            try:
                async with self._http.post(url, data=data, headers=self._headers) as response:
                    body = await response.read()
            except TimeoutError:
                failure = CallFailed("timeout", url)
            except aiohttp.ClientError as error:
                failure = CallFailed("connection", f"{url}: {error}")
            else:
                if response.status == 200:
                    return body
                failure = _refusal(response.status, body)
                if response.status not in RETRYABLE:
                    break
        raise failure


def _refusal(status: int, body: bytes) -> CallFailed:
    """The gateway's error object, or the raw text when it is none."""
    try:
        error = _errors(body).error
    except msgspec.DecodeError:
        error = _Error(message=body[:500].decode(errors="replace"))
    return CallFailed(f"http_{status}", error.message, code=str(error.code or ""))
