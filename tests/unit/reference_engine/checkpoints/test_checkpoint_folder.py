"""A checkpoint is there as a whole or not at all, and the one before it stays until then."""

from pathlib import Path

import pytest

from zprof.reference_engine.checkpoints import check_checkpoint_path
from zprof.reference_engine.checkpoints.manifest import MANIFEST, CheckpointFolder


def publish(path: Path, text: str, *, overwrite: bool = False) -> None:
    folder = CheckpointFolder(path)
    folder.start_draft(overwrite=overwrite)
    (folder.draft / MANIFEST).write_text(text)
    folder.publish()


def test_nothing_is_in_place_before_it_is_published(tmp_path):
    folder = CheckpointFolder(tmp_path / "a" / "b")
    folder.start_draft(overwrite=False)
    assert folder.draft.parent == folder.path.parent
    assert not folder.path.exists()
    folder.publish()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_only_a_checkpoint_is_replaced_and_only_when_asked(tmp_path):
    publish(tmp_path / "x", "old")
    with pytest.raises(ValueError, match="overwrite=True"):
        publish(tmp_path / "x", "new")
    publish(tmp_path / "x", "new", overwrite=True)
    assert (tmp_path / "x" / MANIFEST).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="y"):
        publish(tmp_path / "y", "new", overwrite=True)
    assert (tmp_path / "y" / "thesis.txt").read_text() == "years of work"


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path):
    killed = CheckpointFolder(tmp_path / "x")
    killed.start_draft(overwrite=False)
    (killed.draft / "half").write_text("half")
    publish(tmp_path / "x", "new")
    abandoned = CheckpointFolder(tmp_path / "x")
    abandoned.start_draft(overwrite=True)
    abandoned.abandon()
    assert [path.name for path in (tmp_path / "x").iterdir()] == [MANIFEST]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_cut_short_between_the_two_renames_the_old_one_comes_back(tmp_path, monkeypatch):
    publish(tmp_path / "x", "old")
    folder = CheckpointFolder(tmp_path / "x")
    folder.start_draft(overwrite=True)
    rename = Path.rename

    def killed_at_the_second(path: Path, target: Path) -> Path:
        if path == folder.draft:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        folder.publish()
    monkeypatch.undo()
    assert not (tmp_path / "x").exists()
    CheckpointFolder(tmp_path / "x").recover()
    assert (tmp_path / "x" / MANIFEST).read_text() == "old"


def test_a_link_is_followed_and_stays(tmp_path):
    publish(tmp_path / "x", "old")
    (tmp_path / "latest").symlink_to("x")
    publish(tmp_path / "latest", "new", overwrite=True)
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "x" / MANIFEST).read_text() == "new"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_place_can_be_checked_before_the_training(tmp_path: Path, overwrite: bool) -> None:
    check_checkpoint_path(tmp_path / "new" / "step1", overwrite=overwrite)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "mine", tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ValueError, match=f"^[^\n]*{path.name}[^\n]*$"):
            check_checkpoint_path(path, overwrite=overwrite)
