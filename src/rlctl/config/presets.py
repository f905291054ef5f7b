"""Presets by name: shipped in the wheel, or in the checkout's `presets/`."""

from pathlib import Path

from rlctl.config.suggest import nearest
from rlctl.errors import ConfigError

PACKAGE = Path(__file__).parent.parent


def folder() -> Path:
    """Where the shipped presets are: inside the installed package, else beside `src/` of a checkout."""
    inside = PACKAGE / "presets"
    return inside if inside.is_dir() else PACKAGE.parent.parent / "presets"


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.toml"))


def find(source: str | Path, beside: Path | None = None) -> Path:
    """A file (relative to `beside` first), else a shipped preset of that name; ConfigError naming the nearest one."""
    path = Path(source)
    for candidate in ([beside.parent / path] if beside else []) + [path]:
        if candidate.is_file():
            return candidate
    if (shipped := folder() / f"{path}.toml").is_file() and len(path.parts) == 1:
        return shipped
    hint = nearest(path.stem, names())
    where = f"{beside}: extends: " if beside else ""
    raise ConfigError(
        f"{where}{source}: no such file, and no preset of that name"
        + (f"; did you mean {hint!r}?" if hint else f"; presets: {', '.join(names())}")
    )


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
