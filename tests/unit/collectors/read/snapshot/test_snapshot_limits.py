"""The process that reads a snapshot is limited, its answer is checked, and nothing of it is left behind."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.snapshot_truth.write_snapshot import write_snapshot
from tests.support.hostile_pickles import good
from zprof.base.errors import BadInput
from zprof.collectors.read.snapshot import reader
from zprof.collectors.read.snapshot.reader import MAX_FILE_BYTES, compute_limits, read_snapshot
from zprof.process.sandbox import Limits

WIDE = compute_limits(1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


def refusal(path: Path, limits: Limits | None = None) -> str:
    with pytest.raises(BadInput) as error, read_snapshot(path, limits):
        pass
    assert "\n" not in error.value.message
    assert error.value.hint
    return error.value.message


def test_wall_time_is_limited(path: Path) -> None:
    refusal(write_snapshot(path, good()), replace(WIDE, wall_s=0.0))


def test_a_file_larger_than_any_snapshot_is_not_read(path: Path) -> None:
    path.write_bytes(b"\x80\x04")
    os.truncate(path, MAX_FILE_BYTES + 1)  # a hole: takes no disk
    refusal(path)


def test_tables_of_the_child_are_checked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reader.TABLES, "block", reader.TABLES["block"].remove(0))
    assert "block" in refusal(write_snapshot(path, good()))


def test_nothing_is_left_behind(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    with read_snapshot(write_snapshot(path, good())):
        assert list(private.iterdir())
    path.write_bytes(b"\x80\x02.")
    refusal(path)
    assert not list(private.iterdir())
