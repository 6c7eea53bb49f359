"""The temporary folder of a killed recording is removed at the next start, and no other folder is."""

import tempfile
from pathlib import Path

import pytest

from tests.support.command_calls import run_python
from zprof.run.files import make_scratch_folder, open_scratch_folder, remove_leftovers

MAKE = """
import tempfile, sys
tempfile.tempdir = sys.argv[1]
from zprof.run.files import make_scratch_folder
print(make_scratch_folder('record'))
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def make_leftover(temporary: Path) -> Path:
    """Return the folder of a process that has ended without removing it."""
    return Path(run_python("-c", MAKE, str(temporary), cwd=Path(__file__).parents[3]).strip())


def test_only_the_folders_of_ended_processes_are_removed(temporary: Path) -> None:
    live = make_scratch_folder("ranks")
    outside = make_leftover(temporary).rename(temporary.parent / "outside")
    leftover = make_leftover(temporary)
    link = temporary / "zprof-record-link"
    link.symlink_to(outside)
    unknown = temporary / "zprof-record-unknown"
    unknown.mkdir()
    damaged = temporary / "zprof-record-damaged"
    damaged.mkdir()
    (damaged / "owner.json").write_text("[1")
    remove_leftovers()
    assert not leftover.exists()
    assert {live, link, unknown, damaged} == set(temporary.iterdir())
    assert (outside / "owner.json").exists()


def test_a_folder_is_removed_with_its_content(temporary: Path) -> None:
    with open_scratch_folder("trace") as folder:
        (folder / "trace.json").touch()
    assert not list(temporary.iterdir())
