"""What of a folder is imported, by content."""

import gzip
import io
import json
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.hostile_pickles import good
from tests.support.trace_folders import trace_document, write_ranks, write_trace
from zprof.collectors.file_kinds import FileKind, detect_file_kind
from zprof.integrations.imports.cache import needs_import
from zprof.integrations.imports.sources import SourceKind, find_sources
from zprof.model.errors import BadInput

TRACE = json.dumps(trace_document()).encode()
LONG = b'{"metadata": {"x": "' + b"y" * 9000 + b'"}, "traceEvents": []}'
KINDS = {
    "object": (TRACE, FileKind.TRACE),
    "list": (b'[{"ph": "X"}]', FileKind.TRACE),
    "with byte order mark": (b"\xef\xbb\xbf\n " + TRACE, FileKind.TRACE),
    "late key": (LONG, FileKind.TRACE),
    "gzip": (gzip.compress(TRACE, mtime=0), FileKind.TRACE),
    "zstd": (pa.Codec("zstd").compress(TRACE, asbytes=True), FileKind.TRACE),
    "large zstd": (pa.Codec("zstd").compress(TRACE + os.urandom(900_000), asbytes=True), FileKind.TRACE),
    "other json": (b'{"ranks": [1, 2]}', FileKind.JSON),
    "list of numbers": (b"[1, 2]", FileKind.JSON),
    "snapshot": (pickle.dumps(good()), FileKind.SNAPSHOT),
    "packed snapshot": (gzip.compress(pickle.dumps(good()), mtime=0), FileKind.GZIP_SNAPSHOT),
    "torch archive": (b"PK\x03\x04rest", FileKind.TORCH_ARCHIVE),
    "damaged zstd": (b"\x28\xb5\x2f\xfd" + b"\xff" * 99, FileKind.OTHER),
    "text": (b"hello", FileKind.OTHER),
    "nothing": (b"", FileKind.OTHER),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_content_says_what_a_file_is(name: str, tmp_path: Path) -> None:
    content, kind = KINDS[name]
    (tmp_path / "x").write_bytes(content)
    with (tmp_path / "x").open("rb") as file:
        assert detect_file_kind(file) is kind
        assert file.tell() == 0


def names(path: Path) -> list[str]:
    return [file.name for file in find_sources([path]).files]


def test_traces_are_taken_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    write_ranks(tmp_path, 2)
    (tmp_path / "truth.json").write_text('{"ranks": 2}')
    (tmp_path / "notes.txt").write_text("ours")
    (tmp_path / ".hidden.json").write_bytes(TRACE)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    assert names(tmp_path) == ["rank0.json", "rank1.json"]
    assert needs_import(tmp_path)


def test_a_link_to_a_trace_is_a_trace(tmp_path: Path) -> None:
    real = write_trace(tmp_path / "store/abc", trace_document())
    (tmp_path / "given").mkdir()
    (tmp_path / "given/rank0.json").symlink_to(real)
    assert names(tmp_path / "given") == ["rank0.json"]


def test_both_kinds_in_a_folder_are_said(tmp_path: Path) -> None:
    write_ranks(tmp_path, 2)
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(good()))
    found = find_sources([tmp_path])
    assert found.kind is SourceKind.TRACE
    assert "its 2 traces are taken, its 1 memory snapshots are not" in found.notes[0]


def test_both_kinds_by_name_are_refused(tmp_path: Path) -> None:
    (trace,) = write_ranks(tmp_path, 1)
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(good()))
    with pytest.raises(BadInput, match=r"rank0.json is a trace, .*a.pickle a snapshot"):
        find_sources([trace, tmp_path / "a.pickle"])


def test_a_file_given_twice_counts_once(tmp_path: Path) -> None:
    (trace,) = write_ranks(tmp_path, 1)
    assert find_sources([trace, tmp_path]).files == (trace,)


def test_folders_of_iterations_are_named(tmp_path: Path) -> None:
    for step in (10, 20):
        write_ranks(tmp_path / f"iteration_{step}", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BadInput, match="no file to import, but folders that have some: iteration_10, iter"
    ) as e:
        find_sources([tmp_path])
    assert e.value.hint == "give one of them"
    assert needs_import(tmp_path)


def test_a_folder_of_other_things_is_not_raw(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not needs_import(tmp_path)
    with pytest.raises(BadInput, match="no Kineto trace and no CUDA memory snapshot"):
        find_sources([tmp_path])


def test_a_pipe_by_name_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no plain file"):
        find_sources([tmp_path / "pipe"])


def test_a_file_of_the_kernel_with_nothing_to_read_yet_is_something_else() -> None:
    class Waiting(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return None  # type: ignore[return-value]  # as a file does that is opened not to wait

    assert detect_file_kind(Waiting()) is FileKind.OTHER
