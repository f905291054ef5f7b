"""GET /openapi.json: every route with the types that its body is decoded with, its answers, its errors.

Bodies come from the msgspec structs that the routes decode, so they cannot differ; answers from `replies`, which the
tests hold against real ones. A route of the application that is not described here is a failing test.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from rlctl import __version__
from rlctl.gateway.dialects.anthropic import MessagesRequest
from rlctl.gateway.dialects.chat import ChatRequest
from rlctl.gateway.dialects.completions import CompletionRequest
from rlctl.gateway.dialects.responses import ResponsesRequest
from rlctl.gateway.routes import replies
from rlctl.gateway.routes.episodes import UID, Complete, Engines, Generate, Init, Register, SubmitBody
from rlctl.gateway.routes.feedback import FeedbackBody

BASE = "/{trajectory_uid}/{prompt_uid}/v1/"
SAY = [{"role": "user", "content": "hello"}]
TOOL = {"name": "move", "description": "Go.", "parameters": {"type": "object"}}
ERRORS = {
    400: "The request cannot be honoured as it is; the message names the field.",
    401: "A key is required (gateway.admin_key_env is set).",
    404: "No such path, trajectory or response.",
    408: "The body did not come in time.",
    409: "The trajectory has been completed, belongs to another prompt, or is refused by the pool.",
    413: "The body is longer than gateway.max_body_bytes.",
    421: "Requests for trajectories of two workers were pipelined on one connection; use one for each.",
    429: "Every engine is full; see Retry-After.",
    500: "The gateway failed; its log says why.",
    502: "An engine or service failed.",
    503: "The pool, every engine, or the reward service is away; see Retry-After.",
    504: "The engine did not answer in time.",
}


@dataclass(frozen=True)
class Operation:
    """One route."""

    method: str
    path: str
    summary: str
    reply: Any
    """Type of the JSON answer; None: text."""
    body: Any = None
    """Type of the JSON body; None: there is none, or anything JSON."""
    example: dict[str, Any] | None = None
    optional: bool = False
    """An empty body counts as {}."""
    streams: bool = False
    errors: tuple[int, ...] = ()
    """Besides those that every route has."""
    anthropic: bool = False
    """Errors in Anthropic's shape."""
    unready: bool = False
    """503 has the same body as 200."""
    query: tuple[str, ...] = ()
    passes_on: bool = False
    """Another service's answer comes back, whatever it is."""


MODEL = (400, 404, 408, 409, 413, 421, 429, 500, 502, 503, 504)
OWN = (400, 408, 409, 413, 421, 500, 503)
OPERATIONS = (
    Operation("POST", BASE + "chat/completions", "OpenAI chat completions.", replies.ChatCompletion, ChatRequest,
              {"messages": SAY, "max_tokens": 8, "tools": [{"type": "function", "function": TOOL}]}, streams=True,
              errors=MODEL),
    Operation("POST", BASE + "completions", "OpenAI completions: a raw prompt, text or token ids.", replies.Completion,
              CompletionRequest, {"prompt": "hello", "max_tokens": 8, "return_token_ids": True}, streams=True,
              errors=MODEL),
    Operation("POST", BASE + "responses", "OpenAI responses.", replies.ResponseObject, ResponsesRequest,
              {"input": "hello", "max_output_tokens": 8}, streams=True, errors=MODEL),
    Operation("POST", BASE + "messages", "Anthropic messages.", replies.AnthropicMessage, MessagesRequest,
              {"messages": SAY, "max_tokens": 8}, streams=True, errors=MODEL, anthropic=True),
    Operation("POST", BASE + "messages/count_tokens", "Anthropic count_tokens; nothing is begun.",
              replies.CountedTokens, MessagesRequest, {"messages": SAY}, errors=(*OWN, 404), anthropic=True),
    Operation("GET", BASE + "models", "The one model.", replies.ModelList, errors=(404, 421)),
    Operation("POST", BASE + "register_trajectory", "Channel and metadata of a trajectory.", replies.Status, Register,
              {"channel": "train", "metadata": {"level": 3}}, optional=True, errors=(*OWN, 404)),
    Operation("POST", BASE + "complete_trajectory", "The end of a trajectory, with its reward if there is one.",
              replies.Status, Complete, {"reward": 1.0, "facts": {"success": True}}, optional=True,
              errors=(*OWN, 404)),
    Operation("POST", "/init_trajectory", "Begin a trajectory; base_url is what its agent needs.",
              replies.BegunTrajectory, Init, {"channel": "train"}, optional=True, errors=OWN),
    Operation("POST", "/generate", "Token ids in, token ids out; nothing is recorded.", replies.Generated, Generate,
              {"prompt_ids": [1, 2], "sampling_params": {"max_tokens": 8}}, errors=MODEL),
    Operation("POST", "/submit_steps", "Steps that a white-box agent made itself.", replies.Submitted, SubmitBody,
              {"steps": [{"prompt_ids": [1], "response_ids": [2], "rollout_log_probs": [-0.5], "trajectory_uid": "w",
                          "prompt_uid": "p"}]}, errors=(*OWN, 404, 502), query=("channel",)),
    Operation("POST", "/compute_reward", "Passed on to the reward service's /score, and its answer back.", Any,
              example={}, errors=(408, 413, 500, 502, 503), passes_on=True),
    Operation("POST", "/feedback", "What somebody thinks of a trajectory or one of its steps.", replies.FeedbackGiven,
              FeedbackBody, {"trajectory_uid": "t", "value": 1.0}, errors=(400, 404, 408, 413, 500, 503)),
    Operation("POST", "/engines", "Add and remove engines while the gateway runs.", replies.EngineList, Engines,
              {"add": [], "remove": []}, optional=True, errors=(400, 408, 413, 500)),
    Operation("GET", "/health", "Alive; needs no key.", replies.Status),
    Operation("GET", "/ready", "Whether tokenizer, pool and an engine are there.", replies.Readiness, unready=True),
    Operation("GET", "/metrics", "Prometheus text.", None),
    Operation("GET", "/openapi.json", "This document.", Any),
)  # fmt: skip


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    typed = [one.body for one in OPERATIONS] + [one.reply for one in OPERATIONS]
    kinds = [kind for kind in dict.fromkeys(typed) if kind not in (None, Any)]
    kinds += [replies.Error, replies.AnthropicError]
    found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    schemes["key"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    about = "`v1` below the prompt may be missing or stand there twice; a session key may stand before it."
    return {
        "openapi": "3.1.0",
        "info": {"title": "rlctl gateway", "version": __version__, "description": about},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(one: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": one.summary, "parameters": _parameters(one), "responses": _answers(one, schemas)}
    if one.method == "POST":
        content: dict[str, Any] = {"schema": schemas.get(one.body, {})}
        if one.example is not None:
            content["example"] = one.example
        made["requestBody"] = {"required": not one.optional, "content": {"application/json": content}}
    return made


def _parameters(one: Operation) -> list[dict[str, Any]]:
    uid = {"type": "string", "pattern": f"^{UID.pattern}$"}
    names = ("trajectory_uid", "prompt_uid") if one.path.startswith(BASE) else ()
    found: list[dict[str, Any]] = [{"name": name, "in": "path", "required": True, "schema": uid} for name in names]
    return found + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in one.query]


def _answers(one: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    kind = "text/plain" if one.reply is None else "application/json"
    content = {kind: {"schema": {"type": "string"} if one.reply is None else schemas.get(one.reply, {})}}
    if one.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    if one.passes_on:
        found["default"] = {"description": "What the service answered.", "content": content}
    if one.unready:
        found["503"] = {"description": "Something is missing.", "content": content}
    error = schemas[replies.AnthropicError if one.anthropic else replies.Error]
    for status in sorted({*one.errors, *(() if one.path == "/health" else (401,))}):
        entry: dict[str, Any] = {"description": ERRORS[status]}
        entry["content"] = {"application/json": {"schema": error}}
        if status in (429, 503):
            entry["headers"] = {"retry-after": {"schema": {"type": "string"}}}
        found.setdefault(str(status), entry)
    return found
