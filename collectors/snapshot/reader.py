"""Read a CUDA memory snapshot file in a child process, and check the result.

The child gets the open file, a private folder, and limits by the file's size; it is killed when it exceeds
them. Its tables are checked again here: nothing that it reports is trusted.
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
from zprof.collectors.snapshot.limits import MAX_FILE_BYTES, Limits, limits_for, max_inflated_bytes
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.run.schema import TABLES

_ANSWER = "answer.json"
_TABLES = ("block", "segment", "stack", "mark")
_MAX_ROWS = 50_000_000
_MAX_ANSWER_BYTES = 4 << 20
_AGAIN = "dump the snapshot again; if it fails again, please report it"
_DAMAGED = "no sound snapshot of its size does: dump it again"
#: The child's search path: the standard library, then the zprof that runs here, then installed packages.
_BOOT = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from zprof.collectors.snapshot.child import start;"
    "start(sys.argv[2:])"
)
#: Arrow's own allocators map gigabytes at once, and each thread a stack: both would exceed the limit.
_FRUGAL = {
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


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    hint: str = ""
    rows: dict[str, int] = {}
    gaps: list[Gap] = []
    history_begin_ns: dict[str, int] = {}


@contextmanager
def read_snapshot(path: Path, limits: Limits | None = None) -> Iterator[SnapshotFile]:
    """Yield the contents of the snapshot at ``path``; its tables are valid until the context ends.

    ``limits`` default to those for the file's size.

    Raises:
        BadInput: it is no snapshot, damaged, hostile, or exceeds the limits.
    """
    with tempfile.TemporaryDirectory(prefix="zprof-snapshot-") as name:
        folder = Path(name)
        try:
            with _open_plain(path, folder) as file:
                size = os.fstat(file.fileno()).st_size
                bound = limits or limits_for(size)
                end = _run_child(file, folder, bound)
            found = _read_result(folder, end, bound)
        except BadInput as error:
            raise BadInput(f"{path}: {error.message}", hint=error.hint) from None
        yield found


@contextmanager
def _open_plain(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """Open the file, decompressed if necessary."""
    if not path.is_file():
        raise BadInput("no such file", hint="give a snapshot file, or a folder of them")
    try:
        with path.open("rb") as file:
            _check_size(file)
            kind = detect_file_kind(file)
            if kind is not FileKind.GZIP_SNAPSHOT:
                refuse_other(kind)
                yield file
                return
            unpacked = folder / "unpacked.pickle"
            inflate(file, unpacked, max_inflated_bytes(os.fstat(file.fileno()).st_size))
        with unpacked.open("rb") as file:
            yield file
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", hint="give a snapshot that is there") from None


def _check_size(file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        raise BadInput(
            f"{size >> 20} MiB are more than the {MAX_FILE_BYTES >> 20} that a snapshot may have",
            hint="dump it again with a smaller max_entries",
        )


def refuse_other(kind: FileKind) -> None:
    """Raise an error that names the kind of a file that is not a snapshot.

    Raises:
        BadInput: for every kind but snapshots.
    """
    if kind in (FileKind.TRACE, FileKind.JSON):
        raise BadInput(
            "a Kineto trace, or other JSON: no memory snapshot",
            hint="dump one with torch.cuda.memory._dump_snapshot",
        )
    if kind is FileKind.TORCH_ARCHIVE:
        raise BadInput(
            "an archive (as torch.save writes): tensors, not a memory snapshot",
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
        env=os.environ | _FRUGAL,
        start_new_session=True,
    )
    try:
        return child.wait(timeout=limits.wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.kill()
        child.wait()


def _read_result(folder: Path, end: int | None, limits: Limits) -> SnapshotFile:
    if end is None:
        raise BadInput(f"reading it takes more than {limits.wall_s:.0f} seconds", hint=_DAMAGED)
    if end in (-signal.SIGXCPU, -signal.SIGKILL):
        raise BadInput(
            f"reading it takes more than {limits.processor_s} seconds of processor time, or more memory than "
            "there is",
            hint=_DAMAGED,
        )
    if end != 0:
        raise BadInput(f"it ends the process that reads it (status {end})", hint=_DAMAGED)
    answer = _answer(folder)
    if answer.error:
        raise BadInput(answer.error, hint=answer.hint)
    tables = {name: _read_table(folder, name, answer.rows.get(name, -1)) for name in _TABLES}
    begin = answer.history_begin_ns
    return SnapshotFile(tables=tables, gaps=tuple(answer.gaps), history_begin_ns=begin)


def _answer(folder: Path) -> _Answer:
    path = folder / _ANSWER
    try:
        if path.stat().st_size > _MAX_ANSWER_BYTES:
            raise BadInput("what its reader says is too long", hint=_AGAIN)
        return msgspec.json.decode(path.read_bytes(), type=_Answer)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise BadInput("its reader left no answer", hint=_AGAIN) from None


def _read_table(folder: Path, name: str, rows: int) -> Any:
    """Return one table of the child, checked: schema, number of rows, nulls, valid contents."""
    try:
        with pa.memory_map(str(folder / f"{name}.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise BadInput(f"its table {name} cannot be read ({reason})", hint=_AGAIN) from None
    nulls = [field.name for field in table.schema if not field.nullable and table[field.name].null_count]
    if table.schema != TABLES[name] or table.num_rows != rows or rows > _MAX_ROWS or nulls:
        raise BadInput(f"its table {name} is not as it should be", hint=_AGAIN)
    return table


_CHUNK_BYTES = 1 << 20
_GZIP = 31


def inflate(source: BinaryIO, target: Path, most_bytes: int) -> None:
    """Decompress the first gzip member of ``source`` into ``target``.

    Raises:
        BadInput: it is damaged, or decompresses to more than ``most_bytes``.
    """
    machine = zlib.decompressobj(wbits=_GZIP)
    written = 0
    with target.open("wb") as sink:
        while not machine.eof:
            chunk = machine.unconsumed_tail or source.read(_CHUNK_BYTES)
            if not chunk:
                raise BadInput("a damaged gzip file (it ends too early)", hint="copy the file again")
            piece = _inflate_chunk(machine, chunk)
            written += len(piece)
            if written > most_bytes:
                raise BadInput(f"it unpacks to more than {most_bytes >> 20} MiB", hint="unpack it yourself")
            sink.write(piece)


def _inflate_chunk(machine: Any, chunk: bytes) -> bytes:
    try:
        return bytes(machine.decompress(chunk, _CHUNK_BYTES))
    except zlib.error as error:
        raise BadInput(f"a damaged gzip file ({error})", hint="copy the file again") from None
