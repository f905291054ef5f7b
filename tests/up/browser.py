"""Opens a page in headless Chromium, as a person would, and says what became of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (apt-get install chromium)")
    return found


def run(page: Path, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """(standard output, console messages) of one visit; every visit has a profile of its own."""
    command = [
        chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
    ]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def visit(page: Path, folder: Path) -> tuple[str, list[str]]:
    """(the document after its scripts ran, console messages)."""
    return run(page, folder, "--dump-dom")


def screenshot(page: Path, folder: Path, width: int, height: int, dark: bool = False) -> Path:
    path = folder / "screenshot.png"
    run(
        page,
        folder,
        f"--window-size={width},{height}",
        f"--screenshot={path}",
        *(["--force-dark-mode"] if dark else []),
    )
    return path
