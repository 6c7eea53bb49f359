"""Writes one table of a run as Parquet: whole or not at all, and small.

Times that ascend are stored as differences, other whole numbers with their bytes apart, texts and numbers
of few values by a dictionary: half the size of Parquet's own choice on real traces, and half the time.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.run.manifest import TableFile, staged_path
from zprof.run.schema import TABLES

#: In the order of the table, so that they ascend.
_ASCENDING = frozenset({"start_ns", "time_ns"})
_FEW_VALUES = frozenset({"thread", "stream", "bytes", "peer_rank"})
#: Where the choice was measured.
_OF_TRACES = frozenset({"events", "collectives", "mark"})


def stage_table(folder: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> TableFile:
    """Write a table beside its place: columns must match its schema, but those that may be null.

    The manifest that names it is written next, and :func:`place_table` follows.  A kill in between leaves
    either the older manifest with the older tables, or the new one whose tables a reader finds here.

    Raises:
        OSError: it cannot be written.
    """
    staged = staged_path(folder / f"{name}.parquet")
    temporary = temporary_of(staged)
    rows = _write(temporary, name, columns)
    return TableFile(rows=rows, sha256=sync_and_rename(temporary, staged))


def place_table(folder: Path, name: str) -> None:
    """Replace the table with the one that was staged.

    Raises:
        OSError: it cannot be renamed.
    """
    target = folder / f"{name}.parquet"
    staged_path(target).rename(target)


def write_provisional(folder: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> TableFile:
    """The same in a folder that nobody reads before it is whole, of data that can be had again.

    It does not wait for the disk: a thousand ranks would wait for half a minute.

    Raises:
        OSError: it cannot be written.
    """
    target = folder / f"{name}.parquet"
    rows = _write(target, name, columns)
    with target.open("rb") as file:
        return TableFile(rows=rows, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _write(path: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> int:
    """Rows written."""
    table = _fitted(columns, TABLES[name])
    options = _encodings(TABLES[name]) if name in _OF_TRACES else {}
    pq.write_table(table, path, compression="zstd", compression_level=3, **options)
    return int(table.num_rows)


def write_atomically(target: Path, content: bytes) -> None:
    """Write a small file so that readers see the old or the new content, never a part."""
    temporary = temporary_of(target)
    temporary.write_bytes(content)
    sync_and_rename(temporary, target)


def temporary_of(target: Path) -> Path:
    """Where a file is written until it is whole."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def sync_and_rename(temporary: Path, target: Path) -> str:
    """Put a file that is whole in its place; its SHA-256."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary.rename(target)
    return digest


def _fitted(columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns in the types of the schema, and nulls for those that the writer knows nothing of."""
    if isinstance(columns, pa.Table):
        columns = {column: columns.column(column) for column in columns.column_names}
    rows = len(next(iter(columns.values()), ()))
    absent = [field for field in schema if field.nullable and field.name not in columns]
    return pa.table(
        dict(columns) | {field.name: pa.nulls(rows, field.type) for field in absent}, schema=schema
    )


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """What Parquet is told of each column."""
    chosen = {field.name: _encoding(field) for field in schema}
    return {
        "use_dictionary": [name for name, encoding in chosen.items() if not encoding],
        "column_encoding": {name: encoding for name, encoding in chosen.items() if encoding},
    }


def _encoding(field: pa.Field) -> str:
    """Empty where a dictionary is best."""
    if field.type != pa.int64() or field.name in _FEW_VALUES:
        return ""
    return "DELTA_BINARY_PACKED" if field.name in _ASCENDING else "BYTE_STREAM_SPLIT"
