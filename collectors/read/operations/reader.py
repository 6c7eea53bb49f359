"""Read an operation timeline in a child process under limits, and check the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pyarrow as pa

from zprof.base.errors import BadInput
from zprof.collectors.read.file_sandbox import FileReader
from zprof.collectors.read.formats import FORMATS, FileKind
from zprof.collectors.read.operations.child import HINT, MAX_ROWS, TABLE
from zprof.process.sandbox import Limits
from zprof.run.schema import OPERATIONS

_MEBIBYTE = 1 << 20
_MAX_FILE_BYTES = 2 << 30
#: An operation takes 11 columns of 8 bytes, at most 4 times at once; Parquet packs some in less than a byte.
_BYTES_PER_ROW = 512
_LIMITS = Limits(
    memory_bytes=MAX_ROWS * _BYTES_PER_ROW, cpu_s=120, wall_s=300.0, output_bytes=4 << 30, open_files=32
)


_READER = FileReader(
    module=FORMATS[FileKind.OPERATIONS].sandbox,
    make_limits=lambda size: _LIMITS,
    max_bytes=_MAX_FILE_BYTES,
    too_large_hint="pass fewer steps",
    hint=HINT,
)


@contextmanager
def read_operations(path: Path) -> Iterator[pa.Table]:
    """Yield the table ``operations`` of the timeline at ``path``, valid until the context ends.

    Raises:
        BadInput: It is no operation timeline, is damaged or malicious, or exceeds the limits.
    """
    with _READER.read(path) as folder:
        yield _read_table(path, folder)


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
