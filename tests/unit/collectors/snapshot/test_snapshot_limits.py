"""The reader's child is bound, and bad luck of any kind ends in one line."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hostile_pickles import good
from tests.support.snapshots import Allocator, frames, snapshot_of, write_snapshot
from zprof.collectors.snapshot import reader
from zprof.collectors.snapshot.limits import MAX_FILE_BYTES, Limits, limits_for
from zprof.collectors.snapshot.reader import read_snapshot
from zprof.model.errors import BadInput

ROOT = Path(__file__).parents[4]
WIDE = limits_for(1 << 20)


def refusal(path: Path, limits: Limits | None = None) -> str:
    """The one line that says why it is not read."""
    with pytest.raises(BadInput) as error, read_snapshot(path, limits):
        pass
    assert "\n" not in error.value.message
    assert error.value.hint
    return error.value.message


def test_the_limits_are_set() -> None:
    program = (
        "import resource, json; from zprof.collectors.snapshot.limits import apply_limits, limits_for\n"
        "apply_limits(limits_for(1000)); names = ('AS', 'CPU', 'NOFILE', 'FSIZE', 'CORE')\n"
        "print(json.dumps({n: resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in names}))\n"
        "bytearray(10 << 30)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    limits = json.loads(done.stdout)
    assert "MemoryError" in done.stderr
    assert 512 << 20 < limits["AS"][0] < 2 << 30
    assert limits["AS"][0] == limits["AS"][1], "the child could raise its own limit"
    assert (limits["CORE"], limits["CPU"][0], limits["NOFILE"][0]) == ([0, 0], 20, 32)
    assert limits["FSIZE"][0] == WIDE.output_bytes - 4 * ((1 << 20) - 1000)


@pytest.mark.parametrize(
    ("index", "refused"), [(b"\x00\x00\x00\x04", True), (b"\x00\x00\x10\x00", False)], ids=["1GB", "16MB"]
)
def test_memory_is_bound_by_the_size_of_the_file(index: bytes, refused: bool, tmp_path: Path) -> None:
    """A memo index asks for 16 bytes each: what the limit leaves room for is let through."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x02}r" + index + b"X\x08\x00\x00\x00segments]s.")
    if refused:
        assert "takes more than 512 MiB" in refusal(path)
    else:
        with read_snapshot(path) as read:
            assert read.tables["block"].num_rows == 0


def test_processor_time_is_bound(tmp_path: Path) -> None:
    """Numbers that share a hash make a dict of n keys take n² steps."""
    path = tmp_path / "snapshot.pickle"
    keys = b"".join(pickle.dumps(i * ((1 << 61) - 1), 2)[2:-1] + b"N" for i in range(1, 60_000))
    path.write_bytes(b"\x80\x02}(" + keys + b"u.")
    assert "1 seconds of processor time" in refusal(path, replace(WIDE, processor_s=1))


def test_waiting_time_is_bound(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    assert "takes more than 0 seconds" in refusal(path, replace(WIDE, wall_s=0.0))


def test_what_it_writes_is_bound(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.begin_history()
    for number in range(100):
        allocator.alloc(512, frames=frames(f"f{number}" * 50))
    path = write_snapshot(tmp_path / "snapshot.pickle", snapshot_of(allocator))
    assert "tables cannot be written" in refusal(path, replace(WIDE, output_bytes=10_000))


def test_a_file_beyond_any_snapshot_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04")
    os.truncate(path, MAX_FILE_BYTES + 1)  # a hole: takes no disk
    assert "that a snapshot may have" in refusal(path)


def test_its_tables_are_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that says more rows than it wrote is not believed."""
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    honest = reader._answer

    def lies(folder: Path) -> object:
        answer = honest(folder)
        return type(answer)(rows=answer.rows | {"block": 3}, gaps=answer.gaps)

    monkeypatch.setattr(reader, "_answer", lies)
    assert "table block is not as it should be" in refusal(path)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    (tmp_path / "private").mkdir()
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    with read_snapshot(path):
        assert list((tmp_path / "private").iterdir())
    path.write_bytes(b"\x80\x02.")
    refusal(path)
    assert not list((tmp_path / "private").iterdir())
