"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from rlctl.disk import files


def test_a_file_that_could_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    files.write_text(tmp_path / "x", "old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_whole(tmp_path / "x", fail)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x": "old"}


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, bool]] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        at = os.fstat(handle).st_ino
        synced.append((at == tmp_path.stat().st_ino, (tmp_path / "x").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    assert files.write_whole(tmp_path / "x", lambda path: path.write_text("four"), durable) == 4
    assert synced == ([(False, False), (True, True)] if durable else [])
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
