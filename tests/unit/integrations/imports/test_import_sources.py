"""What of a folder is imported, by content."""

import gzip
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
SNAPSHOT = pickle.dumps(good())
KINDS = {
    "object": (TRACE, FileKind.TRACE),
    "list": (b'[{"ph": "X"}]', FileKind.TRACE),
    "with byte order mark": (b"\xef\xbb\xbf\n " + TRACE, FileKind.TRACE),
    "late key": (LONG, FileKind.TRACE),
    "gzip": (gzip.compress(TRACE, mtime=0), FileKind.TRACE),
    "zstd": (pa.Codec("zstd").compress(TRACE + os.urandom(900_000), asbytes=True), FileKind.TRACE),
    "other json": (b'{"ranks": [1, 2]}', FileKind.JSON),
    "snapshot": (SNAPSHOT, FileKind.SNAPSHOT),
    "packed snapshot": (gzip.compress(SNAPSHOT, mtime=0), FileKind.GZIP_SNAPSHOT),
    "torch archive": (b"PK\x03\x04rest", FileKind.TORCH_ARCHIVE),
    "damaged zstd": (b"\x28\xb5\x2f\xfd" + b"\xff" * 99, FileKind.OTHER),
    "nothing": (b"", FileKind.OTHER),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_content_decides_what_a_file_is(name: str, tmp_path: Path) -> None:
    content, kind = KINDS[name]
    (tmp_path / "x").write_bytes(content)
    with (tmp_path / "x").open("rb") as file:
        assert detect_file_kind(file) is kind
        assert file.tell() == 0


def test_traces_are_taken_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    real = write_trace(tmp_path / "store/abc", trace_document())
    write_ranks(folder := tmp_path / "given", 2)
    (folder / "rank2.json").symlink_to(real)
    (folder / "truth.json").write_text('{"ranks": 2}')
    (folder / "notes.txt").write_text("ours")
    (folder / ".hidden.json").write_bytes(TRACE)
    os.mkfifo(folder / "pipe.json")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    assert [file.name for file in find_sources([folder]).files] == ["rank0.json", "rank1.json", "rank2.json"]
    assert needs_import(folder)
    assert find_sources([folder / "rank0.json", folder]).files.count(folder / "rank0.json") == 1


def test_of_a_folder_with_both_kinds_the_traces_are_taken_with_a_note(tmp_path: Path) -> None:
    (trace,) = write_ranks(tmp_path, 1)
    (tmp_path / "a.pickle").write_bytes(SNAPSHOT)
    found = find_sources([tmp_path])
    assert (found.kind, found.files, len(found.notes)) == (SourceKind.TRACE, (trace,), 1)
    with pytest.raises(BadInput, match=r"rank0.json is a trace, .*a.pickle is a snapshot"):
        find_sources([trace, tmp_path / "a.pickle"])


def test_folders_of_iterations_are_named(tmp_path: Path) -> None:
    for step in (10, 20):
        write_ranks(tmp_path / f"iteration_{step}", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"iteration_10, iteration_20(?m:$)"):
        find_sources([tmp_path])
    assert needs_import(tmp_path)


@pytest.mark.parametrize(
    ("files", "is_one"),
    [
        (["worker-1/a.pickle", "worker-2/a.pickle"], True),
        (["node3_rank10/x.pickle", "node4_rank9/x.pickle"], True),
        (["worker-1/a.pickle", "worker-1/b.pickle", "worker-2/a.pickle"], False),
        (["iteration_10/rank0.pickle", "iteration_20/rank0.pickle"], False),
        (["node1_rank0/x.pickle", "node2_rank0/x.pickle"], False),
    ],
    ids=["workers", "hosts with ranks", "two of a rank", "iterations", "the same rank twice"],
)
def test_a_folder_per_rank_is_one_recording(files: list[str], is_one: bool, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(SNAPSHOT)
    if is_one:
        assert find_sources([tmp_path]).files == tuple(tmp_path / name for name in files)
    else:
        with pytest.raises(BadInput, match=Path(files[0]).parts[0]):
            find_sources([tmp_path])


def test_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    assert not needs_import(tmp_path)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadInput, match=str(path)):
            find_sources([path])
