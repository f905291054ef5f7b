"""pydantic's errors as lines for people: place, key, what is wrong, and the nearest valid key."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rlctl.config.base import masked
from rlctl.config.root import Config
from rlctl.config.serving import Env
from rlctl.config.suggest import nearest
from rlctl.config.worlds import WORLDS

Key = tuple[str, ...]
_BRACKETED = re.compile(r"\[([a-z_0-9.]+)\]")


def problems(error: ValidationError, tree: Mapping[str, Any], places: Mapping[Key, str], at: Key = ()) -> list[str]:
    """One line per problem, all of them, each beginning with the place the value came from."""
    found: list[str] = []
    for item in error.errors():
        key = at + tuple(str(part) for part in item["loc"])
        if isinstance(cause := item.get("ctx", {}).get("error"), ValidationError):
            found += problems(cause, tree, places, key)
        elif item["type"] == "value_error":
            lines = [_with_places(line, places) for line in str(item["ctx"]["error"]).splitlines()]
            found += [f"{_spoken_of(key, line, places)}: {'.'.join(key)}: {line}" if key else line for line in lines]
        elif item["type"] == "extra_forbidden":
            found.append(f"{_place(key, places)}: unknown key {'.'.join(key)}{_hint(key, tree)}")
        elif item["type"] == "missing":
            found.append(f"{_place(key, places)}: {'.'.join(key)} is required")
        else:
            found.append(f"{_place(key, places)}: {'.'.join(key)}: {item['msg']}, not {_short(item['input'])}")
    return found


def _place(key: Key, places: Mapping[Key, str]) -> str:
    """Place of the key itself, else of the nearest table around it."""
    for length in range(len(key), 0, -1):
        if key[:length] in places:
            return places[key[:length]]
    return "defaults"


def _spoken_of(table: Key, line: str, places: Mapping[Key, str]) -> str:
    """Place of the first key of the table that was set and that the message names, else of the table."""
    for word in re.findall(r"[a-z_0-9]+", line):
        if (*table, word) in places:
            return places[*table, word]
    return _place(table, places)


def _with_places(line: str, places: Mapping[Key, str]) -> str:
    """`[a.b]` in a message about several keys -> a.b (place)."""

    def show(match: re.Match[str]) -> str:
        place = places.get(tuple(match[1].split(".")), "default")
        return f"{match[1]} ({place})"

    return _BRACKETED.sub(show, line)


def _hint(key: Key, tree: Mapping[str, Any]) -> str:
    valid = keys_of(key[:-1], tree)
    near = nearest(key[-1], valid)
    if near:
        return f"; did you mean {near!r}?"
    return f"; valid keys: {', '.join(valid)}" if valid else ""


def keys_of(table: Key, tree: Mapping[str, Any]) -> list[str]:
    """Valid keys of the table at `table` (an [[env]] has its environment's own ones too)."""
    model: Any = Config
    for part in table:
        if part.isdigit():
            continue
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            continue
        model = field.annotation
        model = next((arg for arg in get_args(model) if isinstance(arg, type) and issubclass(arg, BaseModel)), model)
    keys = list(getattr(model, "model_fields", {}))
    if model is Env and len(table) > 1:
        name = tree["env"][int(table[1])].get("name", "")
        keys += list(WORLDS[name].model_fields) if name in WORLDS else []
    return keys


def _short(value: object) -> str:
    text = masked(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
