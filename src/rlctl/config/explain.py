"""What a key means, and what it is set to: for `rlctl config explain` and `rlctl config diff`."""

from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rlctl.config.load import Loaded
from rlctl.config.root import Config
from rlctl.config.serving import Env
from rlctl.config.suggest import nearest
from rlctl.config.worlds import WORLDS
from rlctl.errors import ConfigError

Row = dict[str, Any]


def explain(key: str, loaded: Loaded | None) -> list[Row]:
    """One row per key at or below `key`: {"key", "type", "doc", "default", "value", "place"}.

    Without `loaded`, value and place are None. Numbers in the key (env.0.size) count as the item's table.
    """
    rows = [row for row in _rows(Config, ()) if _under(row["key"], key)]
    if not rows:
        hint = nearest(key, [row["key"] for row in _rows(Config, ())] + list(Config.model_fields))
        raise ConfigError(f"no key {key}" + (f"; did you mean {hint!r}?" if hint else ""))
    return [row | _set(row["key"], key, loaded) for row in rows]


def _under(key: str, wanted: str) -> bool:
    plain = ".".join(part for part in wanted.split(".") if not part.isdigit())
    return key == plain or key.startswith(f"{plain}.")


def _set(key: str, wanted: str, loaded: Loaded | None) -> Row:
    """Value and place of a key in a loaded configuration (of the item that `wanted` numbers, else the first)."""
    if loaded is None:
        return {"value": None, "place": None}
    path: list[str] = []
    value: Any = loaded.config.model_dump(mode="json")
    number = next((part for part in wanted.split(".") if part.isdigit()), "0")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
        path.append(part)
        if isinstance(value, list) and value and isinstance(value[0], dict) and int(number) < len(value):
            value = value[int(number)]
            path.append(number)
    return {"value": value, "place": loaded.places.get(tuple(path), "default")}


def _rows(model: type[BaseModel], at: tuple[str, ...]) -> list[Row]:
    rows: list[Row] = []
    for name, field in model.model_fields.items():
        key = (*at, name)
        if table := _table(field.annotation):
            rows += _rows(table, key)
        else:
            rows.append({"key": ".".join(key), "type": _type(field), "doc": _doc(field), "default": _default(field)})
    if model is Env:
        for kind, world in WORLDS.items():
            rows += [row | {"doc": f"[{kind}] {row['doc']}"} for row in _rows(world, at)]
    return rows


def _table(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field: itself, or the items of a list or dict of them."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    choices = get_args(annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(repr(choice) for choice in choices)
    return annotation.__name__ if isinstance(annotation, type) and not choices else str(annotation)


def _doc(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    return None if value is PydanticUndefined else value


def flat(config: Config) -> dict[str, Any]:
    """Dotted key -> value of every key; items of lists of tables by number."""
    found: dict[str, Any] = {}

    def walk(value: Any, at: str) -> None:
        if isinstance(value, dict) and value:
            for name, item in value.items():
                walk(item, f"{at}.{name}" if at else name)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for i, item in enumerate(value):
                walk(item, f"{at}.{i}")
        else:
            found[at] = value

    walk(config.model_dump(mode="json"), "")
    return found
