"""The engines' POST /v1/completions (vLLM's face): what is sent, what comes back, the policy version of each token."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlctl.errors import WireError
from rlctl.gateway.sampling import Part, Sampled, Sampling


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs
    text: str = ""
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


_decode_reply = msgspec.json.Decoder(_Reply).decode
Versions = list[tuple[int, int]]
"""Run-length `[(policy version, tokens), ...]` of one response."""


class _StreamChoice(msgspec.Struct):
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    text: str = ""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamChoice] = []
    policy_versions: str | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Seen(msgspec.Struct):
    prompt_token_ids: list[int] | None = None


class _SeenReply(msgspec.Struct):
    choices: list[_Seen] = []


_decode_seen = msgspec.json.Decoder(_SeenReply).decode
IMAGES = "x-rlctl-images"
"""Number of images that the body brings; an engine that has taken them says it again in its answer."""


def prompt_seen(data: bytes) -> list[int] | None:
    """Prompt ids with the images' tokens in them, from a good answer, or a chunk of one."""
    return next((one.prompt_token_ids for one in _decode_seen(data).choices if one.prompt_token_ids), None)


class Assembly:
    """A streamed completion put together again."""

    def __init__(self, url: str, count: int, tell: Callable[[Part], None], images: bool = False) -> None:
        self.url = url
        self._images = images
        self.prompt: list[int] | None = None
        """Prompt ids as the engine saw them, where there are images."""
        self._tell = tell
        self.versions: str | None = None
        """As X-Policy-Versions; only the last chunk knows."""
        self.whole = False
        """`[DONE]` has come."""
        self._buffer = b""
        self._sampled = [Sampled("", [], [], "", []) for _ in range(count)]

    def hear(self, data: bytes) -> None:
        """Bytes as they arrive -> parts told; WireError when they are something else."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            text = line.strip()
            if text == b"data: [DONE]":
                self.whole = True
            elif text.startswith(b"data: "):
                self._chunk(text[6:])

    def sampled(self) -> list[Sampled]:
        """The choices; WireError when the stream broke off."""
        if not self.whole or not all(one.finish_reason for one in self._sampled):
            raise WireError(f"{self.url} ended its stream before the answer was whole")
        return [msgspec.structs.replace(one, top=one.top or None) for one in self._sampled]

    def _chunk(self, data: bytes) -> None:
        try:
            chunk = _decode_chunk(data)
        except msgspec.DecodeError as error:
            raise WireError(f"{self.url} streamed something else than completion chunks: {error}") from None
        if chunk.error:
            raise WireError(f"{self.url} failed during the stream: {chunk.error}")
        self.versions = chunk.policy_versions or self.versions
        if self._images and self.prompt is None:
            self.prompt = prompt_seen(data)
        for choice in chunk.choices:
            self._tell(self._part(choice))

    def _part(self, choice: _StreamChoice) -> Part:
        ids = choice.token_ids or []
        logprobs = choice.logprobs or _Logprobs([])
        if len(logprobs.token_logprobs) != len(ids) or None in logprobs.token_logprobs:
            raise WireError(f"{self.url} streamed {len(ids)} token ids with {len(logprobs.token_logprobs)} logprobs")
        if not 0 <= choice.index < len(self._sampled):
            raise WireError(f"{self.url} streamed a choice {choice.index} that nobody asked for")
        known = self._sampled[choice.index]
        values: list[float] = logprobs.token_logprobs  # type: ignore[assignment]  # checked above
        known.ids.extend(ids)  # type: ignore[attr-defined]  # our own lists
        known.logprobs.extend(values)  # type: ignore[attr-defined]
        if known.top is not None and logprobs.top_logprobs:
            known.top.extend(logprobs.top_logprobs)
        self._sampled[choice.index] = msgspec.structs.replace(
            known, text=known.text + choice.text, finish_reason=choice.finish_reason or known.finish_reason
        )
        return Part(choice.index, choice.text, ids, values, logprobs.top_logprobs)


def body(prompt: bytes, asked: Sampling, stream: bool = False, images: Sequence[bytes] = ()) -> bytes:
    """JSON for the engine; `prompt` is int32 ids. Only parameters that differ from the engine's defaults are named."""
    request: dict[str, Any] = {
        "prompt": memoryview(prompt).cast("i").tolist(),
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "logprobs": asked.top_logprobs,
        "return_token_ids": True,
    }
    for name in ("top_k", "min_p", "stop", "stop_token_ids"):
        if value := getattr(asked, name):
            request[name] = value
    if asked.response_format:
        request["response_format"] = asked.response_format
    if images:
        request["images"] = [base64.b64encode(one).decode() for one in images]
    if stream:
        request["stream"] = True
    if asked.n > 1:
        request["n"] = asked.n
    if asked.seed is not None:
        request["seed"] = asked.seed
    return msgspec.json.encode(request)


def choices(data: bytes, url: str) -> list[Sampled]:
    """The sampled choices; WireError when ids and logprobs are not there in equal numbers."""
    try:
        reply = _decode_reply(data)
    except msgspec.DecodeError as error:
        raise WireError(f"{url} answered something else than a completion with token ids: {error}") from None
    return [_sampled(choice, url) for choice in reply.choices]


def _sampled(choice: _Choice, url: str) -> Sampled:
    logprobs = choice.logprobs.token_logprobs
    if len(logprobs) != len(choice.token_ids) or None in logprobs:
        raise WireError(f"{url} gave {len(choice.token_ids)} token ids with {len(logprobs)} logprobs")
    reason = choice.finish_reason or "abort"
    return Sampled(choice.text, choice.token_ids, logprobs, reason, choice.logprobs.top_logprobs)  # type: ignore[arg-type]


def versions(header: str | None, lengths: list[int], known: int) -> list[Versions]:
    """Versions of each choice from `X-Policy-Versions: 3:17,4:47;3:12`; `known` for all where an engine sends none."""
    if header is None:
        return [[(known, length)] if length else [] for length in lengths]
    try:
        runs = [
            [
                (int(version), int(count))
                for version, _, count in (run.partition(":") for run in choice.split(",") if run)
            ]
            for choice in header.split(";")
        ]
    except ValueError:
        raise WireError(f"X-Policy-Versions does not parse: {header!r}") from None
    if [sum(count for _, count in choice) for choice in runs] != lengths:
        raise WireError(f"X-Policy-Versions {header!r} does not add up to the responses' {lengths} tokens")
    return runs
