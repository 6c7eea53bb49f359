"""Read a CUDA memory snapshot file in a child process, and check the result.

The child gets the open file, a private folder, and limits based on the file size; it is killed if it exceeds
them. Its tables are checked again here: its output is not trusted.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

import zprof
from zprof.collectors.file_kinds import FileKind, detect_file_kind
from zprof.collectors.snapshot.limits import (
    MAX_FILE_BYTES,
    Limits,
    compute_limits,
    compute_max_inflated_bytes,
)
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

_ANSWER = "answer.json"
_TABLES = ("block", "segment", "stack", "mark")
_MAX_ROWS = 50_000_000
_MAX_ANSWER_BYTES = 4 << 20
_DUMP_AGAIN = "dump the snapshot again; if it fails again, please report it"
_DAMAGED_HINT = "this is not expected for a valid snapshot of its size: dump it again"
#: The child's search path: the standard library, then this zprof, then installed packages.
_BOOT = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from zprof.collectors.snapshot.child import start;"
    "start(sys.argv[2:])"
)
#: Arrow's own allocators map gigabytes at once, and each thread a stack: both would exceed the limit.
_LOW_MEMORY_VARIABLES = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """Contents of one file: Arrow tables by name, gaps, and the starts of its histories by device."""

    tables: Mapping[str, Any]
    gaps: tuple[Gap, ...]
    history_begin_ns: Mapping[str, int]


class SnapshotReaderKilled(BadInput):
    """The process that read the file was killed: with more memory or time, another try may succeed."""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
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
                child_limits = limits or compute_limits(size)
                status = _run_child(file, folder, child_limits)
            contents = _read_result(folder, status, child_limits)
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
            _check_size(file)
            kind = detect_file_kind(file)
            if kind is not FileKind.GZIP_SNAPSHOT:
                reject_other_kinds(kind)
                yield file
                return
            unpacked = folder / "unpacked.pickle"
            inflate(file, unpacked, compute_max_inflated_bytes(os.fstat(file.fileno()).st_size))
        with unpacked.open("rb") as file:
            yield file
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", hint="pass a readable snapshot file") from None


def _check_size(file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        raise BadInput(
            f"{size >> 20} MiB exceed the limit of {MAX_FILE_BYTES >> 20} MiB for a snapshot",
            hint="dump it again with a smaller max_entries",
        )


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
    if kind is FileKind.OTHER:
        raise BadInput(
            "neither a run nor a CUDA memory snapshot (a pickle of protocol 2 to 5)",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )


def _run_child(file: BinaryIO, folder: Path, limits: Limits) -> int | None:
    """Return the child's exit status; None if it exceeded its time and was killed."""
    root = str(Path(zprof.__file__).parents[1])
    command = [sys.executable, "-I", "-c", _BOOT, root, str(folder), json.dumps(asdict(limits))]
    child = subprocess.Popen(
        command,
        stdin=file,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=os.environ | _LOW_MEMORY_VARIABLES,
        start_new_session=True,
    )
    try:
        return child.wait(timeout=limits.wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.kill()
        child.wait()


def _read_result(folder: Path, status: int | None, limits: Limits) -> SnapshotFile:
    if status is None:
        raise SnapshotReaderKilled(
            f"reading it takes more than {limits.wall_s:.0f} seconds", hint=_DAMAGED_HINT
        )
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise SnapshotReaderKilled(
            f"reading it takes more than {limits.cpu_s} seconds of CPU time, or more memory than available",
            hint=_DAMAGED_HINT,
        )
    if status != 0:
        raise BadInput(f"it crashes the process that reads it (status {status})", hint=_DAMAGED_HINT)
    answer = _read_answer(folder)
    if answer.error:
        raise BadInput(answer.error, hint=answer.hint)
    tables = {name: _read_table(folder, name, answer.rows.get(name, -1)) for name in _TABLES}
    history_start_ns = answer.history_begin_ns
    return SnapshotFile(tables=tables, gaps=tuple(answer.gaps), history_begin_ns=history_start_ns)


def _read_answer(folder: Path) -> _Answer:
    path = folder / _ANSWER
    try:
        if path.stat().st_size > _MAX_ANSWER_BYTES:
            raise BadInput("the result of its reader is too long", hint=_DUMP_AGAIN)
        return msgspec.json.decode(path.read_bytes(), type=_Answer)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise BadInput("its reader wrote no valid result", hint=_DUMP_AGAIN) from None


def _read_table(folder: Path, name: str, rows: int) -> Any:
    """Return one table of the child, checked: schema, number of rows, nulls, valid contents."""
    try:
        with pa.memory_map(str(folder / f"{name}.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise BadInput(f"its table {name} cannot be read ({reason})", hint=_DUMP_AGAIN) from None
    nulls = [field.name for field in table.schema if not field.nullable and table[field.name].null_count]
    if table.schema != TABLES[name] or table.num_rows != rows or rows > _MAX_ROWS or nulls:
        raise BadInput(f"its table {name} has the wrong schema, row count or nulls", hint=_DUMP_AGAIN)
    return table


_CHUNK_BYTES = 1 << 20
_GZIP = 31


def inflate(source: BinaryIO, target: Path, max_bytes: int) -> None:
    """Decompress the first gzip member of ``source`` into ``target``.

    Raises:
        BadInput: it is damaged, or decompresses to more than ``max_bytes``.
    """
    decompressor = zlib.decompressobj(wbits=_GZIP)
    written = 0
    with target.open("wb") as sink:
        while not decompressor.eof:
            chunk = decompressor.unconsumed_tail or source.read(_CHUNK_BYTES)
            if not chunk:
                raise BadInput("a damaged gzip file (it ends too early)", hint="copy the file again")
            piece = _inflate_chunk(decompressor, chunk)
            written += len(piece)
            if written > max_bytes:
                raise BadInput(f"it unpacks to more than {max_bytes >> 20} MiB", hint="unpack it yourself")
            sink.write(piece)


def _inflate_chunk(decompressor: Any, chunk: bytes) -> bytes:
    try:
        return bytes(decompressor.decompress(chunk, _CHUNK_BYTES))
    except zlib.error as error:
        raise BadInput(f"a damaged gzip file ({error})", hint="copy the file again") from None
