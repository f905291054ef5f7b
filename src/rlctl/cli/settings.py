"""`rlctl presets` and `rlctl config`: what there is, what a run would use, and where each value comes from."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlctl.cli.options import Json, Set, Sources, loaded

presets = typer.Typer(help="Shipped presets.", no_args_is_help=True)
config = typer.Typer(help="Look at configurations: every value, its place, its meaning.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A preset's name.")]


@presets.command("ls")
def presets_ls(as_json: Json = False) -> None:
    """Names and first lines."""
    from rlctl.config.presets import find, names, read

    rows = [{"name": name, "about": about(read(find(name))), "file": str(find(name))} for name in names()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['name']:28} {row['about']}")


def about(text: str) -> str:
    """The comment a preset begins with, on one line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


@presets.command("show")
def presets_show(name: Name) -> None:
    """The text of a preset."""
    from rlctl.config.presets import find, read

    typer.echo(read(find(name)), nl=False)


@presets.command("copy")
def presets_copy(
    name: Name, to: Annotated[str, typer.Argument(help="File to write; NAME.toml when empty.")] = ""
) -> None:
    """Copy a preset to a file of your own."""
    from rlctl.config.presets import find, read
    from rlctl.errors import ConfigError

    source = find(name)
    target = Path(to or source.name)
    if target.exists():
        raise ConfigError(f"{target} is there already; name another file")
    target.write_text(read(source), encoding="utf-8")
    typer.echo(f"wrote {target}", err=True)


@config.command("show")
def config_show(sources: Sources, set_: Set = [], as_json: Json = False) -> None:
    """The resolved configuration, every key written out."""
    found = loaded(sources, set_)
    typer.echo(json.dumps(found.config.model_dump(mode="json")) if as_json else found.toml(), nl=as_json)


@config.command("validate")
def config_validate(sources: Sources, set_: Set = [], as_json: Json = False) -> None:
    """Check a configuration; every problem at once, with its place."""
    loaded(sources, set_)
    if as_json:
        typer.echo(json.dumps({"valid": True}))
    else:
        typer.echo(f"{' '.join(sources)}: valid", err=True)


@config.command("explain")
def config_explain(
    key: Annotated[str, typer.Argument(help="A key or a section, e.g. train.optim.lr or pool.")],
    sources: Annotated[list[str], typer.Argument(metavar="[PRESET|FILE]...", help="Presets or files.")] = [],
    set_: Set = [],
    as_json: Json = False,
) -> None:
    """Type, meaning, default and value of a key, and which file and line set it."""
    from rlctl.config.explain import explain

    rows = explain(key, loaded(sources, set_) if sources else None)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        value = "" if row["value"] is None else f" = {row['value']}"
        place = f"  ({row['place']})" if sources else ""
        typer.echo(f"{row['key']}{value}{place}")
        typer.echo(f"    {row['type']}, default {row['default']}")
        if row["doc"]:
            typer.echo(f"    {row['doc']}")


@config.command("diff")
def config_diff(
    first: Annotated[str, typer.Argument(help="A preset or file.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    as_json: Json = False,
) -> None:
    """Keys whose values differ."""
    from rlctl.config.explain import flat

    one, other = flat(loaded([first], []).config), flat(loaded([second], []).config)
    rows = [
        {"key": key, "first": one.get(key), "second": other.get(key)}
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['key']}: {_toml(row['first'])} -> {_toml(row['second'])}")


def _toml(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value)


@config.command("schema")
def config_schema() -> None:
    """JSON Schema of a preset, for completion in editors."""
    from rlctl.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=1))


def register(app: typer.Typer) -> None:
    app.add_typer(presets, name="presets", rich_help_panel="Configuration")
    app.add_typer(config, name="config", rich_help_panel="Configuration")
