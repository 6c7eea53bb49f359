"""Read one table of a run, after checking it.

Nothing in a run is trusted: schema, row count and checksum are compared with the manifest, and a table is
rejected if its declared size would not fit in memory.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas: 50 MB of the memory of a program that is
being recorded, and most of the time of a short command. So do functions of ``pyarrow.compute`` with a Python
number as an argument.
"""

import hashlib
import os
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.base.errors import BadInput
from zprof.run.files import open_plain
from zprof.run.manifest import TableFile, TablePart, get_part_path, get_staged_path
from zprof.run.schema import TABLES

if TYPE_CHECKING:
    import pandas as pd
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

_MAX_ROWS = 50_000_000
#: Limit on the unpacked size: repeated strings are stored once, so many rows can share a long one.
_MAX_TEXT_BYTES = 64 << 20
_MAX_ROW_BYTES = 1 << 10
#: A table of at most this size is read without threads, which would take longer to start than to decode it.
_MAX_SMALL_BYTES = 1 << 17
_NUMPY_TYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int64(): np.int64,
    pa.int32(): np.int32,
    pa.float64(): np.float64,
}
#: Numbers of these types are read without a copy.
_READ_TYPES: dict[pa.DataType, type[np.generic]] = {
    **_NUMPY_TYPES,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float32(): np.float32,
}
#: Types of ``array.array``, which rejects a float in an integer column.
_TYPE_CODES = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d"}


def read_table(path: Path, name: str, file: TableFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table as Arrow; ``file`` is its entry in the manifest.

    Raises:
        BadInput: The table does not exist, is damaged, or does not match the manifest.
    """
    try:
        with _open_checked(path, file) as content:
            size = os.fstat(content.fileno()).st_size
            is_small = size <= _MAX_SMALL_BYTES
            parquet = pq.ParquetFile(pa.BufferReader(content.read()) if is_small else content)
            if parquet.metadata.num_rows != file.rows or not 0 <= file.rows <= _MAX_ROWS:
                raise BadInput(
                    f"{path}: its row count differs from the manifest", hint="record the run again"
                )
            groups = (parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups))
            if sum(group.total_byte_size for group in groups) > _MAX_TEXT_BYTES + _MAX_ROW_BYTES * file.rows:
                raise BadInput(
                    f"{path}: its unpacked size is too large for its row count", hint="record the run again"
                )
            schema = parquet.schema_arrow
            for field in TABLES[name]:
                index = schema.get_field_index(field.name)
                if index < 0 and field.nullable:
                    continue  # written before the column was introduced
                if index < 0 or schema.field(index).type != field.type:
                    raise BadInput(
                        f"{path}: column {field.name!r} does not match the schema of {name}",
                        hint="record again",
                    )
            table = _read(parquet, name, columns, use_threads=not is_small)
            _check_nulls(path, table)
            return table
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, PermissionError):
            raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="ask its owner") from None
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(f"{path}: cannot be read ({reason[:120]})", hint="record the run again") from None


def read_parts(
    path: Path, name: str, parts: Sequence[TablePart], columns: Sequence[str] | None = None
) -> pa.Table:
    """Return a table with a truncated window from its parts; ``path`` is the path of the complete table.

    Raises:
        BadInput: A part does not exist, is damaged, or does not match the manifest.
    """
    if sum(part.rows for part in parts) > _MAX_ROWS:
        raise BadInput(f"{path}: its parts have too many rows", hint="record the run again")
    files = [(part.number, TableFile(rows=part.rows, sha256=part.sha256)) for part in parts]
    tables = [read_table(get_part_path(path, number), name, file, columns) for number, file in files]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def list_missing_columns(paths: Sequence[Path], name: str) -> list[str]:
    """Return the optional columns missing in a table's file; none if it cannot be read.

    ``read_table()`` reads them as null, and rejects unreadable files.
    """
    missing: set[str] = set()
    for path in paths:
        try:
            with open_plain(path) as content:
                present = set(pq.ParquetFile(content).schema_arrow.names)
        except (OSError, pa.ArrowException):
            continue
        missing |= {field.name for field in TABLES[name] if field.nullable} - present
    return [column for column in TABLES[name].names if column in missing]


def as_frame(table: pa.Table) -> "pd.DataFrame":
    """Return a table as a DataFrame; nullable int64 columns become pandas' nullable Int64."""
    import pandas as pd

    nullable = {field.name for field in table.schema if field.nullable and field.type == pa.int64()}
    frame = table.drop_columns(sorted(nullable)).to_pandas()
    for column in nullable:
        frame[column] = table.column(column).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return pd.DataFrame(frame[table.column_names])


def _open_checked(path: Path, file: TableFile) -> BufferedReader:
    """Open the table that the manifest refers to.

    A writer updates the manifest before it renames the table. It may have been killed in between, or be about
    to rename it: hence the staged path is tried, then the final path again.
    """
    for candidate in (path, get_staged_path(path), path):
        try:
            content = open_plain(candidate)
        except FileNotFoundError:
            continue
        if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
            content.seek(0)
            return content
        content.close()
    open_plain(path).close()  # raises if it does not exist
    raise BadInput(
        f"{path}: damaged, its checksum differs from the manifest",
        hint="copy the run again, or record it again",
    )


def _read(
    parquet: pq.ParquetFile, name: str, columns: Sequence[str] | None, *, use_threads: bool
) -> pa.Table:
    """Return the requested columns; columns missing in an old file become null."""
    requested = list(columns) if columns else TABLES[name].names
    available = set(parquet.schema.names)
    present = [column for column in requested if column in available]
    table = parquet.read(columns=present, use_threads=use_threads)
    if parquet.metadata.num_row_groups > 1:
        table = table.unify_dictionaries().combine_chunks()  # each group has its own dictionary of strings
    for column in requested:
        if column not in available:
            field = TABLES[name].field(column)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    # Another writer may have declared other columns as nullable.
    fields = [TABLES[name].field(column) for column in requested]
    return pa.Table.from_arrays([table.column(column) for column in requested], schema=pa.schema(fields))


def _check_nulls(path: Path, table: pa.Table) -> None:
    for field, column in zip(table.schema, table.columns, strict=True):
        # True for missing values; a string can also be a null in the dictionary.
        if not field.nullable and (
            bool(column.null_count)
            if not pa.types.is_dictionary(column.type)
            else bool(column.null_count) or any(chunk.dictionary.null_count for chunk in column.chunks)
        ):
            raise BadInput(
                f"{path}: damaged, column {field.name!r} lacks values", hint="copy or record the run again"
            )


def make_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of type ``kind``: a number, a bool or a dictionary of strings; None becomes null.

    Raises:
        ArrowException, TypeError, OverflowError: A value does not have that type.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if kind in _NUMPY_TYPES:
        if isinstance(values, np.ndarray):
            if not np.can_cast(values.dtype, _NUMPY_TYPES[kind], "same_kind"):
                raise TypeError(f"values of type {values.dtype} in a column of {kind}")
            return make_masked(values, kind, np.zeros(len(values), dtype=np.bool_))
        mask = np.fromiter((value is None for value in values), np.bool_, len(values))
        filled = array(_TYPE_CODES[kind], (0 if value is None else value for value in values))
        return make_masked(np.array(filled), kind, mask)
    if pa.types.is_dictionary(kind):
        return _encode_texts(values)
    if pa.types.is_boolean(kind):
        is_true = values if isinstance(values, np.ndarray) else np.fromiter(values, np.bool_, len(values))
        bits = np.packbits(is_true, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)], 0)
    return pa.array(values, type=kind)


def make_masked(values: npt.NDArray[Any], kind: pa.DataType, mask: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the numbers as a column; masked numbers become null."""
    null_count = int(np.count_nonzero(mask))
    validity = pa.py_buffer(np.packbits(~mask, bitorder="little")) if null_count else None
    data = pa.py_buffer(np.ascontiguousarray(values, dtype=_NUMPY_TYPES[kind]))
    return pa.Array.from_buffers(kind, len(values), [validity, data], null_count)


def make_texts(texts: Sequence[str]) -> pa.StringArray:
    """Return strings as an array without nulls; invalid Unicode, as in some paths, is escaped."""
    encoded = [text.encode("utf-8", "backslashreplace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def make_empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def join_chunks(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if not column.num_chunks:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def read_numbers(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers or bools as a read-only array; nulls have arbitrary values.

    Raises:
        TypeError: The column has another type.
    """
    values = join_chunks(column)
    data = values.buffers()[1] if len(values) else b""
    if pa.types.is_boolean(values.type):
        return _read_bits(data, values)
    if values.type not in _READ_TYPES:
        raise TypeError(f"a column of {values.type} in place of numbers")
    kind = np.dtype(_READ_TYPES[values.type])
    return np.frombuffer(data, kind, len(values), values.offset * kind.itemsize if len(values) else 0)


def read_known(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are not null."""
    values = join_chunks(column)
    if not values.null_count:
        return np.ones(len(values), dtype=np.bool_)
    return _read_bits(values.buffers()[0], values)


def _read_bits(data: pa.Buffer | bytes, values: pa.Array) -> npt.NDArray[np.bool_]:
    """Return the bits of an array's rows as bools."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].astype(np.bool_)


def _encode_texts(values: Sequence[str | None]) -> pa.DictionaryArray:
    codes_by_text: dict[str, int] = {}
    codes = np.zeros(len(values), dtype=np.int32)
    mask = np.zeros(len(values), dtype=np.bool_)
    for index, value in enumerate(values):
        if value is None:
            mask[index] = True
        else:
            codes[index] = codes_by_text.setdefault(value, len(codes_by_text))
    return pa.DictionaryArray.from_arrays(
        make_masked(codes, pa.int32(), mask), make_texts(tuple(codes_by_text))
    )
