"""What all OpenAI dialects share: fields, limits, sampling parameters. A field that cannot be honoured is a 400.

Every request type forbids unknown fields, so nothing a client asks for is ignored. Fields of no effect on the answer
(`user`, `metadata`, `prompt_cache_key`, ...: hints for the provider's own bookkeeping) are accepted.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import Limits, Sampled, Sampling


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of both chat completions and completions."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """vLLM's; -1 or 0: off."""
    min_p: float | None = None
    """vLLM's."""
    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    """vLLM's."""
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What every checked request says, of whatever dialect."""

    model: str
    sampling: Sampling
    stream: bool
    include_usage: bool


class Options(NamedTuple):
    """The fields of Call, in its order."""

    model: str
    sampling: Sampling
    stream: bool
    include_usage: bool

    def constrained(self, response_format: dict[str, Any] | None) -> "Options":
        """With what the engine is to constrain its sampling by, if anything."""
        if response_format is None:
            return self
        return self._replace(sampling=msgspec.structs.replace(self.sampling, response_format=response_format))


def options(request: Common, limits: Limits, max_tokens: int | None, top_logprobs: int = 0) -> Options:
    """What a request says besides its prompt, checked, with the run's defaults filled in."""
    usage = bool(request.stream_options and request.stream_options.include_usage)
    asked = sampling(request, limits, max_tokens, top_logprobs)
    return Options(request.model or "default", asked, bool(request.stream), usage)


T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Typed JSON, or a 400 that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        if text.startswith("Object contains unknown field"):
            field = text.split("`")[1]
            raise Fault(400, f"Unrecognized request argument supplied: {field}", "unknown_parameter", field) from None
        path = text.rpartition(" - at `$.")[2].rstrip("`") if "at `$." in text else ""
        raise bad(text, path.split("[")[0], "invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}", code="invalid_json") from None


def sampling(request: Common, limits: Limits, max_tokens: int | None, top_logprobs: int) -> Sampling:
    """Checked parameters with the run's defaults filled in."""
    for name, off in (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1)):
        if getattr(request, name) not in (None, off):
            raise unsupported(name, "training needs the distribution the policy itself has")
    if request.logit_bias:
        raise unsupported("logit_bias", "training needs the distribution the policy itself has")
    temperature = limits.temperature if request.temperature is None else request.temperature
    top_p = limits.top_p if request.top_p is None else request.top_p
    stop = [request.stop] if isinstance(request.stop, str) else list(request.stop or [])
    n = 1 if request.n is None else request.n
    _between("temperature", temperature, 0, 2)
    _between("top_p", top_p, 0, 1)
    _between("min_p", request.min_p or 0, 0, 1)
    _between("n", n, 1, 128)
    _between("top_logprobs", top_logprobs, 0, 20)
    _between("top_k", request.top_k or 0, -1, 2**31 - 1)
    _between("seed", request.seed or 0, 0, 2**63 - 1)
    for token in request.stop_token_ids or ():
        _between("stop_token_ids", token, 0, 2**31 - 1)
    if top_p == 0:
        raise bad("top_p must be above 0", "top_p")
    if max_tokens is not None:
        _between("max_tokens", max_tokens, 1, limits.response_length)
    if any(not word for word in stop):
        raise bad("stop: an empty string stops nothing", "stop")
    return Sampling(
        temperature,
        top_p,
        max(0, request.top_k or 0),
        request.min_p or 0.0,
        max_tokens or 0,
        n,
        stop,
        list(request.stop_token_ids or []),
        request.seed,
        top_logprobs,
    )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise bad(f"{name} must be between {low} and {high} here, not {value}", name)


def usage(prompt_tokens: int, sampled: list[Sampled]) -> dict[str, Any]:
    """Token counts, from ids."""
    completion = sum(len(one.ids) for one in sampled)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


END_OF_EVENTS = b"data: [DONE]\n\n"
