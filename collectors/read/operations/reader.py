"""Read an operation timeline in a child process under limits, and check the result."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec import Struct, to_builtins

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.collectors.read.formats import FORMATS, FileKind
from zprof.collectors.read.operations.child import ERROR, HINT, MAX_ROWS, TABLE
from zprof.process.sandbox import Limits, Sandbox, make_program
from zprof.run.files import open_plain
from zprof.run.schema import OPERATIONS

_MEBIBYTE = 1 << 20
_MAX_FILE_BYTES = 2 << 30
#: An operation takes 11 columns of 8 bytes, at most 4 times at once; Parquet packs some in less than a byte.
_BYTES_PER_ROW, _MAX_ANSWER_BYTES = 512, 1 << 16
_LIMITS = Limits(
    memory_bytes=MAX_ROWS * _BYTES_PER_ROW, cpu_s=120, wall_s=300.0, output_bytes=4 << 30, open_files=32
)


class _Answer(Struct, frozen=True, kw_only=True):
    error: str
    hint: str = HINT


@contextmanager
def read_operations(path: Path) -> Iterator[pa.Table]:
    """Yield the table ``operations`` of the timeline at ``path``, valid until the context ends.

    Raises:
        BadInput: It is no operation timeline, is damaged or malicious, or exceeds the limits.
    """
    with tempfile.TemporaryDirectory(prefix="zprof-operations-") as name:
        folder = Path(name)
        try:
            with open_plain(path) as file:
                if os.fstat(file.fileno()).st_size > _MAX_FILE_BYTES:
                    raise BadInput(
                        f"{path}: larger than {_MAX_FILE_BYTES >> 30} GiB", hint="pass fewer steps"
                    )
                program = make_program(FORMATS[FileKind.OPERATIONS].sandbox)
                arguments = [str(folder), json.dumps(to_builtins(_LIMITS))]
                with Sandbox(program, arguments, _LIMITS, folder=folder, stdin=file) as child:
                    failure = child.wait()
        except OSError as error:
            raise BadInput(
                f"{path}: cannot be read ({error.strerror})", hint="pass a readable file"
            ) from None
        if failure is not None:
            raise BadInput(f"{path}: the process that reads it failed: {failure.message}", hint=HINT)
        _raise_error(path, folder)
        yield _read_table(path, folder)


def _raise_error(path: Path, folder: Path) -> None:
    try:
        with open_plain(folder / ERROR) as file:
            answer = msgspec.json.decode(file.read(_MAX_ANSWER_BYTES), type=_Answer)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        answer = _Answer(error="its reader wrote no valid result")
    raise BadInput(f"{path}: {printable(answer.error)}", hint=printable(answer.hint))


def _read_table(path: Path, folder: Path) -> pa.Table:
    """Return the table of the child, checked: schema, number of rows, nulls, valid contents."""
    try:
        with (folder / TABLE).open("rb") as file:
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException):
        raise BadInput(f"{path}: its reader wrote no valid table", hint=HINT) from None
    is_complete = not any(column.null_count for column in table.columns)
    if table.schema != OPERATIONS or not 0 < table.num_rows <= MAX_ROWS or not is_complete:
        raise BadInput(f"{path}: its reader wrote a table of another form", hint=HINT)
    return table
