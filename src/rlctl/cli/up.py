"""Commands to come."""

import typer


def register(app: typer.Typer) -> None:
    del app
