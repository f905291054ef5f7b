"""SwanLab without a network. It wants an older protobuf than other packages, so it needs an environment of its own."""

from pathlib import Path

import pytest

from rlctl.trackers.choose import maker
from rlctl.trackers.mirror import Mirror
from tests.trackers.runs import make

pytest.importorskip("swanlab", reason="pip install 'rlctl[swanlab]'")


def test_an_offline_run_has_the_animations_and_the_names_of_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    mirror = Mirror(make(tmp_path / "run"), "swanlab", maker("swanlab"), "lakes", {"run": {"name": "lake"}})
    mirror.close()
    assert (mirror.noted.rows, mirror.noted.pictures, mirror.noted.failures) == (6, 2, 0), mirror.noted.error
    (folder,) = (tmp_path / "run" / "trackers" / "swanlab").glob("run-*")
    sent = sorted((folder / "media" / "image").glob("*.gif"))
    kept = sorted((tmp_path / "run" / "pictures").rglob("episode.gif"))
    assert [path.name[:4] for path in sent] == ["000-", "003-"]
    assert [path.read_bytes() for path in sent] == [path.read_bytes() for path in kept]
    (stored,) = folder.glob("run-*.swanlab")
    for tag in ("train/loss", "eval/frozenlake/val/success_rate", "pictures/val/frozenlake-0"):
        assert tag.encode() in stored.read_bytes()
