"""The engines' POST /v1/completions (vLLM's face): what is sent, what comes back, the policy version of each token."""

from typing import Any

import msgspec

from rlctl.errors import WireError
from rlctl.gateway.dialects import Sampled, Sampling


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


def body(prompt: bytes, asked: Sampling) -> bytes:
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
