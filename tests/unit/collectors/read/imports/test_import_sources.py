"""What of a folder is imported, by content."""

import gzip
import json
import os
import pickle
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from docs.tools.format_matrix import render_pages
from tests.support.hostile_pickles import good
from tests.support.trace_folders import trace_document, write_ranks, write_trace
from zprof.base.errors import BadInput
from zprof.collectors.read.formats import FORMATS, FileKind, SourceKind, detect_file_kind
from zprof.collectors.read.imports.cache import needs_import
from zprof.collectors.read.imports.sources import find_sources

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
    "other pickle": (pickle.dumps({"step": 1}), FileKind.PICKLE),
    "no list of segments": (pickle.dumps({"segments": 1}), FileKind.PICKLE),
    **{f"protocol {n}": (pickle.dumps(good(), protocol=n), FileKind.SNAPSHOT) for n in (2, 3, 4, 5)},
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


#: What is passed by mistake: name, content, a word of what it is called, a word of what to give instead.
FOREIGN = [
    ("out.json", b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}', "rocprofv3", "Kineto"),
    (
        "x_kernel_trace.csv",
        b'"Kind","Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp"\n',
        "rocprof",
        "Kineto",
    ),
    ("x_hip_api_trace.csv", b'"Domain","Function","Process_Id","Correlation_Id"\n', "rocprof", "Kineto"),
    ("x.db", b"SQLite format 3\0" + bytes(90_000) + b"CREATE TABLE `rocpd_string_00`", "rocpd", "Kineto"),
    ("x.sqlite", b"SQLite format 3\0" + bytes(90_000), "SQLite", "Kineto"),
    ("x.nsys-rep", b"\x91\x02\x00binary", "Nsight Systems", "nsys export"),
    ("X.QDREP", b"\x91\x02\x00binary", "Nsight Systems", "nsys export"),
    ("x.ncu-rep", b"NVR\0rest", "Nsight Compute", "Kineto"),
    ("rank0.et", b"\x07\x0a\x050.0.4\xf2\x01\x08", "Chakra", "Kineto"),
    (
        "rank0_et.json",
        b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}',
        "execution trace",
        "Kineto",
    ),
    ("chakra.json", b'{"nodes": [{"type": "COMM_COLL_NODE", "ctrl_deps": []}]}', "execution trace", "Kineto"),
    (
        "oom.txt",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
        "allocation",
        "_dump_snapshot",
    ),
    (
        "job.log",
        b"epoch 1\n" * 20_000 + b"CUDA out of memory. Tried to allocate 2 GiB",
        "allocation",
        "_dump_snapshot",
    ),
    ("ds.json", b'{"train_batch_size": 8, "zero_optimization": {"stage": 3}}', "DeepSpeed", "zprof plan"),
    (
        "config.json",
        b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}',
        "Hugging Face",
        "zprof plan",
    ),
    (
        "events.out.tfevents.1",
        b"\x18" + bytes(11) + b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2",
        "TensorBoard",
        "Kineto",
    ),
    ("perf.data", b"PERFILE2" + bytes(99), "perf", "with_stack"),
    (
        "p.json",
        b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}',
        "speedscope",
        "with_stack",
    ),
    ("model.pt", b"PK\x03\x04" + bytes(26) + b"model/data.pkl", "torch.save", "zprof plan"),
    ("old.pt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "torch.save", "zprof plan"),
    (
        "m.safetensors",
        b"\x40" + bytes(7) + b'{"w": {"dtype": "F32", "data_offsets": [0, 4]}}',
        "safetensors",
        "zprof plan",
    ),
    ("traces.zip", b"PK\x03\x04" + bytes(26) + b"rank0.json", "zip", "unpack"),
    ("traces.tar", b"rank0.json" + bytes(247) + b"ustar", "tar", "unpack"),
    ("traces.tgz", gzip.compress(b"rank0.json" + bytes(247) + b"ustar"), "tar", "unpack"),
]


@pytest.mark.parametrize(("name", "content", "title", "instead"), FOREIGN, ids=[row[0] for row in FOREIGN])
def test_what_is_not_read_is_named_with_what_to_give(
    name: str, content: bytes, title: str, instead: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(BadInput) as refused:
            find_sources([path])
        assert name in refused.value.message
        assert title in refused.value.message
        assert instead in refused.value.hint


def test_a_trace_that_mentions_a_setting_is_still_a_trace(tmp_path: Path) -> None:
    late = b'{"metadata": {"train_batch_size": 8, "x": "' + b"y" * 70_000 + b'"}, "traceEvents": []}'
    (tmp_path / "x.json").write_bytes(late)
    assert find_sources([tmp_path / "x.json"]).kind is SourceKind.TRACE


def test_a_pickle_of_something_else_is_no_snapshot(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.pickle").write_bytes(pickle.dumps({"step": number, "loss": 0.5}))
    for path in (tmp_path, tmp_path / "0.pickle"):
        with pytest.raises(BadInput):
            find_sources([path])
    (tmp_path / "real.pickle").write_bytes(SNAPSHOT)
    assert find_sources([tmp_path]).files == (tmp_path / "real.pickle",)


def test_the_matrix_of_formats_in_the_documentation_is_that_of_the_table() -> None:
    for page, text in render_pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: python -m docs.tools.format_matrix"


def test_what_the_table_of_formats_names_exists() -> None:
    for entry in FORMATS.values():
        module, _, function = entry.reader.partition(":")
        assert callable(getattr(import_module(module), function))
        assert not entry.sandbox or callable(import_module(entry.sandbox).start)
    assert {entry.source for entry in FORMATS.values()} == set(SourceKind)
    assert len({(entry.source, entry.reader) for entry in FORMATS.values()}) == len(SourceKind)
