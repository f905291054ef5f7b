"""Errors for HTTP clients, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import msgspec

from rlctl.errors import RlctlError


class Fault(RlctlError):
    """An error that becomes an HTTP status and an OpenAI error object."""

    def __init__(self, status: int, message: str, code: str = "", param: str = "", retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's error type for this status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param or None, "code": self.code or None}
        return msgspec.json.encode({"error": error})


def bad(message: str, param: str = "", code: str = "") -> Fault:
    """400: the request cannot be honoured as it is."""
    return Fault(400, message, code or "invalid_value", param)


def unsupported(param: str, why: str) -> Fault:
    """400 for a parameter that would otherwise be ignored."""
    return Fault(400, f"{param} is not supported here: {why}", "unsupported_parameter", param)


def too_long(tokens: int, limit: int, what: str) -> Fault:
    return Fault(
        400,
        f"This model's maximum context length is {limit} tokens for {what}; you asked for {tokens} tokens. "
        "Nothing is cut: shorten the messages or lower max_tokens.",
        "context_length_exceeded",
        "messages",
    )
