"""`POST /v1/completions`: JSON in, sequences; sequences, JSON out. Names and replies are vLLM's."""

from typing import Any

import msgspec
import numpy as np

from rlctl.engines.embedded.sequences import Sampling, Sequence


class Refusal(Exception):
    """The request cannot be served; `status` and `code` as in OpenAI's error object."""

    def __init__(self, message: str, code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The request; a field that is not here is refused by name, never ignored."""

    prompt: list[int] | str
    model: str = ""
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all."""
    min_p: float = 0.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    """Choice i of several uses seed + i."""
    logprobs: int | None = None
    """0 or nothing: that of the sampled token is given in any case; others are not."""
    return_token_ids: bool = True
    """The ids are given in any case."""
    stream: bool = False
    user: str = ""
    """Taken and not used."""


_decode = msgspec.json.Decoder(Body).decode
encode = msgspec.json.Encoder().encode


class Texts:
    """What is needed to turn text into ids and back, and where responses end."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos: frozenset[int], max_context: int) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.eos = eos
        self.max_context = max_context

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def parse(data: bytes, session: str, texts: Texts) -> tuple[Body, list[Sequence]]:
    """The sequences a request asks for; Refusal with what is wrong."""
    try:
        body = _decode(data)
    except msgspec.ValidationError as error:
        raise Refusal(str(error)) from None
    except msgspec.DecodeError as error:
        raise Refusal(f"not valid JSON: {error}") from None
    ids = texts.tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
    _check(body, ids, texts)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if "" in stops:
        raise Refusal("stop: an empty text is everywhere")
    prompt = np.array(ids, dtype=np.int32)
    sequences = []
    for choice in range(body.n):
        sampling = Sampling(
            body.max_tokens,
            body.temperature,
            body.top_p,
            max(body.top_k, 0),
            body.min_p,
            frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else texts.eos),
            tuple(stops),
            None if body.seed is None else body.seed + choice,
        )
        sequences.append(Sequence(prompt, sampling, session))
    return body, sequences


def _check(body: Body, ids: list[int], texts: Texts) -> None:
    ranges = (
        ("max_tokens", body.max_tokens >= 1, "at least 1"),
        ("temperature", 0 <= body.temperature < float("inf"), "0 or more"),
        ("top_p", 0 < body.top_p <= 1, "in (0, 1]"),
        ("top_k", -1 <= body.top_k < 2**31, "in -1..2147483647"),
        ("min_p", 0 <= body.min_p <= 1, "in [0, 1]"),
        ("n", 1 <= body.n <= 128, "in 1..128"),
        ("seed", body.seed is None or 0 <= body.seed < 2**63, "in 0..9223372036854775807"),
        ("logprobs", not body.logprobs, "0 (the embedded engine gives the sampled token's logprob only)"),
    )
    for name, good, wanted in ranges:
        if not good:
            raise Refusal(f"{name} must be {wanted}, not {getattr(body, name)}")
    if not ids:
        raise Refusal("prompt is empty")
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= texts.vocabulary:
        raise Refusal(f"prompt: token ids are 0..{texts.vocabulary - 1}, got {lowest}..{highest}")
    if len(ids) + body.max_tokens > texts.max_context:
        raise Refusal(
            f"the maximum context length is {texts.max_context} tokens; {len(ids)} in the prompt and "
            f"{body.max_tokens} of max_tokens are {len(ids) + body.max_tokens}",
            "context_length_exceeded",
        )


def choice(sequence: Sequence, index: int, texts: Texts, start: int = 0) -> dict[str, Any]:
    """One choice, or its part from token `start` on (streaming; then text is that of the new tokens)."""
    ids = sequence.response[start:]
    text = sequence.text if sequence.text is not None and not start else texts.decode(ids)
    return {
        "index": index,
        "text": text,
        "token_ids": ids,
        "logprobs": {"token_logprobs": sequence.logprobs[start:]},
        "finish_reason": sequence.finish or None,
    }


def usage(sequences: list[Sequence]) -> dict[str, Any]:
    """Token counts over all choices of one prompt."""
    prompt, made = len(sequences[0].prompt), sum(len(s.response) for s in sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": min(s.reused for s in sequences)},
    }


def versions_header(sequences: list[Sequence]) -> str:
    """`3:17,4:47;3:12`: run-length policy versions, choices separated by `;`."""
    return ";".join(",".join(f"{version}:{count}" for version, count in s.versions()) for s in sequences)
