"""Errors for HTTP clients, in the dialect's own shape.

OpenAI     {"error": {"message", "type", "param", "code"}}
Anthropic  {"type": "error", "error": {"type", "message"}}
"""

import msgspec

from rlctl.errors import RlctlError


class Fault(RlctlError):
    """An error that becomes an HTTP status and an OpenAI error object."""

    def __init__(
        self, status: int, message: str, code: str = "", param: str = "", retry_after_s: int = 0, allow: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow
        """The method that a 405 would have taken."""

    @property
    def kind(self) -> str:
        """OpenAI's error type for this status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param or None, "code": self.code or None}
        return msgspec.json.encode({"error": error})

    def anthropic_body(self) -> bytes:
        error = {"type": ANTHROPIC_TYPES.get(self.status, "api_error"), "message": str(self)}
        if self.status < 500 and error["type"] == "api_error":
            error["type"] = "invalid_request_error"
        return msgspec.json.encode({"type": "error", "error": error})


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


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
