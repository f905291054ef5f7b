"""Folders that are whole or not there."""

from pathlib import Path

import pytest

from rlctl.disk import folders


def test_pruning_keeps_the_newest_and_the_spared(tmp_path: Path) -> None:
    for name in ("v1", "v2", "v9", "v10", "v3.tmp", "other"):
        (tmp_path / name).mkdir()
    assert folders.prune(tmp_path, "v", keep=2, spare="v1") == ["v2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "v1", "v10", "v3.tmp", "v9"]


def test_a_folder_that_could_not_be_filled_leaves_the_old_one(tmp_path: Path) -> None:
    folders.write_whole(tmp_path / "x", lambda folder: folder.joinpath("a").write_text("old"))

    def fail(folder: Path) -> None:
        folder.joinpath("a").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folders.write_whole(tmp_path / "x", fail)
    assert (tmp_path / "x" / "a").read_text() == "old"
