"""What the gateway answers, as types: for the OpenAPI document only (the dialects write their JSON themselves).

Every type forbids unknown fields, so the document says all that an answer can hold; the tests compare real answers.
"""

from typing import Any, Literal

import msgspec


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all of them."""


# ---------------------------------------------------------------- errors


class ErrorDetail(Reply, frozen=True):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None = None
    """Field of the request that is wrong."""
    code: str | None = None


class Error(Reply, frozen=True):
    """OpenAI's error object."""

    error: ErrorDetail


class AnthropicErrorDetail(Reply, frozen=True):
    type: str
    message: str


class AnthropicError(Reply, frozen=True):
    """Anthropic's error object."""

    type: Literal["error"]
    error: AnthropicErrorDetail


# ---------------------------------------------------------------- shared


class Usage(Reply, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(Reply, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Reply, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Reply, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None


# ---------------------------------------------------------------- chat completions


class FunctionCall(Reply, frozen=True):
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCall(Reply, frozen=True):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Reply, frozen=True, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []
    reasoning_content: str = ""


class ChatChoice(Reply, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Reply, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


# ---------------------------------------------------------------- completions


class CompletionLogprobs(Reply, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Reply, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []


class Completion(Reply, frozen=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


# ---------------------------------------------------------------- responses


class ReasoningText(Reply, frozen=True):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Reply, frozen=True, tag_field="type", tag="reasoning"):
    id: str
    summary: list[Any]
    content: list[ReasoningText]
    status: Literal["completed"]


class OutputText(Reply, frozen=True):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class MessageItem(Reply, frozen=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: Literal["completed"]
    content: list[OutputText]


class FunctionItem(Reply, frozen=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    status: Literal["completed"]
    name: str
    arguments: str


class InputTokens(Reply, frozen=True):
    cached_tokens: int


class OutputTokens(Reply, frozen=True):
    reasoning_tokens: int


class ResponsesUsage(Reply, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Incomplete(Reply, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(Reply, frozen=True):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    truncation: Literal["disabled"]
    metadata: dict[str, Any]
    output: list[ReasoningItem | MessageItem | FunctionItem]
    usage: ResponsesUsage


# ---------------------------------------------------------------- Anthropic messages


class ThinkingBlock(Reply, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class TextBlock(Reply, frozen=True, tag_field="type", tag="text"):
    text: str


class ToolUseBlock(Reply, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(Reply, frozen=True):
    input_tokens: int
    output_tokens: int


class AnthropicMessage(Reply, frozen=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage


class CountedTokens(Reply, frozen=True):
    input_tokens: int


# ---------------------------------------------------------------- our own


class ModelCard(Reply, frozen=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Reply, frozen=True):
    object: Literal["list"]
    data: list[ModelCard]


class Status(Reply, frozen=True):
    status: Literal["ok"]


class EngineState(Reply, frozen=True):
    url: str
    up: bool
    policy_version: int = 0


class Readiness(Reply, frozen=True):
    ready: bool
    tokenizer: bool
    pool: bool
    engine: bool
    engines: list[EngineState]
    workers: bool = True
    """Only there where there are several."""


class EngineList(Reply, frozen=True):
    engines: list[EngineState]


class BegunTrajectory(Reply, frozen=True):
    trajectory_uid: str
    prompt_uid: str
    base_url: str
    api_key: str = ""
    """Where the gateway wants keys."""


class Generated(Reply, frozen=True):
    token_ids: list[int]
    log_probs: list[float]
    stop_reason: Literal["stop", "length"]
    policy_versions: list[list[int]]
    """Run-length: [version, tokens], ..."""
    top_logprobs: list[dict[str, float] | None] = []


class Submitted(Reply, frozen=True):
    accepted: int
    duplicate: int


class FeedbackGiven(Reply, frozen=True):
    rescored: bool
    duplicate: bool
