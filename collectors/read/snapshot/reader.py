"""Read a CUDA memory snapshot file in a child process, and check the result.

The child gets the open file, a private folder, and limits based on the file size; it is killed if it exceeds
them. Its tables are checked again here: its output is not trusted.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from msgspec import Struct, to_builtins

from zprof.base.errors import BadInput
from zprof.collectors.read.formats import FORMATS, FileKind, detect_file_kind
from zprof.collectors.read.pickle_sandbox import inflate
from zprof.collectors.read.snapshot.child import ANSWER, DAMAGED_HINT
from zprof.model.gaps import Gap
from zprof.process.sandbox import Limits, Sandbox, make_program
from zprof.run.schema import TABLES

_MEBIBYTE = 1 << 20
#: Larger files are rejected: the allocator's ring buffer stays far below this size with practical settings.
MAX_FILE_BYTES = 2 << 30
_MAX_MEMORY_BYTES = 28 << 30
#: Maximum compression ratio; real files have 10 to 40.
_MAX_INFLATION = 200
_TABLES = ("block", "segment", "stack", "mark")
_MAX_ROWS = 50_000_000
_MAX_ANSWER_BYTES = 4 << 20
_DUMP_AGAIN = "dump the snapshot again; if it fails again, please report it"


class SnapshotFile(Struct, frozen=True, kw_only=True):
    """Contents of one file: Arrow tables by name, gaps, and the starts of its histories by device."""

    tables: Mapping[str, Any]
    gaps: tuple[Gap, ...]
    history_begin_ns: Mapping[str, int]


class SnapshotReaderKilled(BadInput):
    """The process that read the file was killed: with more memory or time, another try may succeed."""


class _ReaderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    hint: str = ""
    rows: dict[str, int] = {}
    gaps: list[Gap] = []
    history_begin_ns: dict[str, int] = {}


@contextmanager
def read_snapshot(path: Path, limits: Limits | None = None) -> Iterator[SnapshotFile]:
    """Yield the contents of the snapshot at ``path``; its tables are valid until the context ends.

    ``limits`` default to the limits for the file size.

    Raises:
        BadInput: it is not a snapshot, is damaged or malicious, or exceeds the limits.
    """
    with tempfile.TemporaryDirectory(prefix="zprof-snapshot-") as name:
        folder = Path(name)
        try:
            with _open_plain(path, folder) as file:
                size = os.fstat(file.fileno()).st_size
                _run_child(file, folder, limits or compute_limits(size))
            answer = _read_answer(folder)
            if answer.error:
                raise BadInput(answer.error, hint=answer.hint)
            tables = {name: _read_table(folder, name, answer.rows.get(name, -1)) for name in _TABLES}
            history_start_ns = answer.history_begin_ns
            contents = SnapshotFile(tables=tables, gaps=tuple(answer.gaps), history_begin_ns=history_start_ns)
        except BadInput as error:
            raise type(error)(f"{path}: {error.message}", hint=error.hint) from None
        yield contents


@contextmanager
def _open_plain(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """Open the file, decompressed if necessary."""
    if not path.is_file():
        raise BadInput("no such file", hint="pass a snapshot file, or a folder of snapshots")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise BadInput(
                    f"{size >> 20} MiB exceed the limit of {MAX_FILE_BYTES >> 20} MiB for a snapshot",
                    hint="dump it again with a smaller max_entries",
                )
            kind = detect_file_kind(file)
            if kind is not FileKind.GZIP_SNAPSHOT:
                reject_other_kinds(kind)
                yield file
                return
            unpacked = folder / "unpacked.pickle"
            inflate(file, unpacked, min(_MAX_INFLATION * os.fstat(file.fileno()).st_size, MAX_FILE_BYTES))
        with unpacked.open("rb") as file:
            yield file
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", hint="pass a readable snapshot file") from None


def reject_other_kinds(kind: FileKind) -> None:
    """Raise an error with the kind of a file that is not a snapshot.

    Raises:
        BadInput: for every kind but snapshots.
    """
    if kind in (FileKind.TRACE, FileKind.JSON):
        raise BadInput(
            "a Kineto trace or other JSON, not a memory snapshot",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )
    if kind is FileKind.TORCH_ARCHIVE:
        raise BadInput(
            "an archive written by torch.save, not a memory snapshot",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )
    if kind is FileKind.PICKLE:
        raise BadInput(
            "a pickle without the keys of a memory snapshot",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )
    if kind is FileKind.OTHER:
        raise BadInput(
            "neither a run nor a CUDA memory snapshot (a pickle of protocol 2 to 5)",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )


def compute_limits(file_bytes: int) -> Limits:
    """Return the limits of the process that reads a file of this size (an uncompressed pickle).

    A well-formed file of n bytes needs about 7n bytes of memory.
    """
    cpu_s = 20 + file_bytes // (2 * _MEBIBYTE)
    return Limits(
        memory_bytes=min(12 * file_bytes + 512 * _MEBIBYTE, _MAX_MEMORY_BYTES),
        cpu_s=cpu_s,
        wall_s=60.0 + 4.0 * cpu_s,
        output_bytes=4 * file_bytes + 64 * _MEBIBYTE,
        open_files=32,
    )


def _run_child(file: BinaryIO, folder: Path, limits: Limits) -> None:
    """Let the child write the file's tables into the folder.

    Raises:
        BadInput: it crashed or was killed.
    """
    arguments = [str(folder), json.dumps(to_builtins(limits))]
    program = make_program(FORMATS[FileKind.SNAPSHOT].sandbox)
    with Sandbox(program, arguments, limits, folder=folder, stdin=file) as child:
        failure = child.wait()
    if failure is not None:
        kind = SnapshotReaderKilled if failure.exceeded_limit else BadInput
        raise kind(f"the process that reads it failed: {failure.message}", hint=DAMAGED_HINT)


def _read_answer(folder: Path) -> _ReaderAnswer:
    path = folder / ANSWER
    try:
        if path.stat().st_size > _MAX_ANSWER_BYTES:
            raise BadInput("the result of its reader is too long", hint=_DUMP_AGAIN)
        return msgspec.json.decode(path.read_bytes(), type=_ReaderAnswer)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise BadInput("its reader wrote no valid result", hint=_DUMP_AGAIN) from None


def _read_table(folder: Path, name: str, rows: int) -> Any:
    """Return one table of the child, checked: schema, number of rows, nulls, valid contents."""
    try:
        with (folder / f"{name}.arrow").open("rb") as file:
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise BadInput(f"its table {name} cannot be read ({reason})", hint=_DUMP_AGAIN) from None
    nulls = [field.name for field in table.schema if not field.nullable and table[field.name].null_count]
    if table.schema != TABLES[name] or table.num_rows != rows or rows > _MAX_ROWS or nulls:
        raise BadInput(f"its table {name} has the wrong schema, row count or nulls", hint=_DUMP_AGAIN)
    return table
