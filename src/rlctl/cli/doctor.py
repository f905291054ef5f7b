"""`rlctl doctor`: what this machine has, before a run finds out."""

import json
from typing import Any

import typer

from rlctl.cli.options import Json


def doctor(as_json: Json = False) -> None:
    """Show what is installed and what the machine has. Exit code 1 when the core does not work here."""
    from rlctl.up.planning import machine

    rows = [*machine.rows(), _ports()]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        for row in rows:
            typer.echo(f"{'ok' if row['ok'] else '--':3} {row['name']:14} {row['value']}")
    if not all(row["ok"] for row in rows if row["needed"]):
        raise typer.Exit(1)


def _ports() -> dict[str, Any]:
    """A loopback port can be bound."""
    import socket

    from rlctl.up.planning.machine import row

    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return row("ports", f"127.0.0.1 cannot be listened on: {error}", ok=False, needed=True)
    return row("ports", "free ports on 127.0.0.1", needed=True)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Configuration")(doctor)
