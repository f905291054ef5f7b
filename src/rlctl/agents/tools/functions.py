"""`module:function`: a function of anybody's, its schema made from its signature and docstring."""

import asyncio
import importlib
import inspect
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError, create_model

from rlctl.agents.tools.tool import Json, Tool, ToolFailed
from rlctl.errors import ConfigError


def function(target: str) -> Tool:
    """The tool of `module:function`, run in a thread or as a coroutine; the model reads what it raises."""
    module, _, name = target.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"tool {target!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"tool {target!r} is no function")
    schema, adapter = _schema(target, found)

    async def call(arguments: Json) -> str:
        try:
            given = adapter.validate_python(arguments)
        except ValidationError as error:
            raise ToolFailed(f"wrong arguments: {_problems(error)}") from error
        keywords = {field: getattr(given, field) for field in type(given).model_fields}
        try:
            value = await (
                found(**keywords) if inspect.iscoroutinefunction(found) else asyncio.to_thread(found, **keywords)
            )
        except Exception as error:  # the tool is somebody else's: whatever it raises is its answer
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        return value if isinstance(value, str) else json.dumps(value, default=str)

    return Tool(name, inspect.getdoc(found) or name, schema, call)


def _schema(target: str, found: Any) -> tuple[Json, TypeAdapter[Any]]:
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(found, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {target!r}: parameter {parameter.name!r} has no name that a caller could give")
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    model = create_model("Arguments", __config__={"extra": "forbid"}, **fields)
    return model.model_json_schema(), TypeAdapter(model)


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
