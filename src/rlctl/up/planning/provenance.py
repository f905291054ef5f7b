"""`provenance.json`: what set each key of the configuration (file, variable, flag), and the machine of the run."""

import json
from pathlib import Path
from typing import Any

from rlctl.config import Loaded
from rlctl.disk.files import write_text
from rlctl.up.planning import machine

NAME = "provenance.json"


def note(run_dir: Path, loaded: Loaded) -> None:
    """Write the file; a resumed run, which reads resolved.toml, keeps the places that were known before."""
    path = run_dir / NAME
    resolved = (run_dir / "resolved.toml").absolute()
    places = {".".join(key): place for key, place in loaded.places.items()}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))["places"]
        changed = {key: place for key, place in places.items() if Path(place.rpartition(":")[0]).absolute() != resolved}
        kept = {key: place for key, place in before.items() if not any(under(key, new) for new in changed)}
        places = {**kept, **changed}
    noted = {"places": dict(sorted(places.items())), "machine": machine.rows()}
    write_text(path, json.dumps(noted, indent=1) + "\n")


def read(run_dir: Path) -> dict[str, Any]:
    """{"places", "machine"}; empty ones for a run that did not note them."""
    path = run_dir / NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"places": {}, "machine": []}


def under(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")


def place(key: str, places: dict[str, str]) -> str:
    """Of a dotted key: its own, or that of the closest table that was set as a whole; "" for a default."""
    parts = key.split(".")
    known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((places[name] for name in known if name in places), "")
