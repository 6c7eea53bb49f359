"""Read one table of a run, checked before it is used.

Nothing in a run is trusted: schema, row count and checksum are compared with the manifest, and a table that
would not fit in memory is refused by its declared size.
"""

import hashlib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from zprof.model.errors import BadInput
from zprof.run.manifest import TableFile, staged_path
from zprof.run.plain_file import open_plain
from zprof.run.schema import TABLES

_MAX_ROWS = 50_000_000
#: Limit on the unpacked size: repeated texts are stored once, so a few rows can have long ones.
_MAX_TEXT_BYTES = 64 << 20
_MAX_ROW_BYTES = 1 << 10


def read_table(path: Path, name: str, file: TableFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of this name as Arrow; ``file`` is its entry in the manifest.

    Raises:
        BadInput: it does not exist, is damaged, or does not match the manifest.
    """
    try:
        with _open_checked(path, file) as content:
            parquet = pq.ParquetFile(content)
            _check_table(path, parquet, name, file)
            return _read(parquet, name, columns)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:120]
        raise BadInput(f"{path}: cannot be read ({reason})", hint="record the run again") from None


def as_frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as a DataFrame; nullable int64 columns become pandas' nullable Int64."""
    nullable = {field.name for field in table.schema if field.nullable and field.type == pa.int64()}
    frame = table.drop_columns(sorted(nullable)).to_pandas()
    for column in nullable:
        frame[column] = table.column(column).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return pd.DataFrame(frame[table.column_names])


def _open_checked(path: Path, file: TableFile) -> BufferedReader:
    """Open the table that the manifest names.

    A writer names a table before it puts it in its place, and may have been killed in between, or be about to
    do it now: hence the staged file, and then the final place again.
    """
    for candidate in (path, staged_path(path), path):
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
        f"{path}: damaged, its checksum is not the one that was written",
        hint="copy the run again, or record it again",
    )


def _check_table(path: Path, parquet: pq.ParquetFile, name: str, file: TableFile) -> None:
    if parquet.metadata.num_rows != file.rows or not 0 <= file.rows <= _MAX_ROWS:
        raise BadInput(f"{path}: its row count is not the one that was written", hint="record the run again")
    groups = (parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups))
    if sum(group.total_byte_size for group in groups) > _MAX_TEXT_BYTES + _MAX_ROW_BYTES * file.rows:
        raise BadInput(f"{path}: unpacks to more than its rows can hold", hint="record the run again")
    have = parquet.schema_arrow
    for want in TABLES[name]:
        index = have.get_field_index(want.name)
        if index < 0 and want.nullable:
            continue  # written before the column was introduced
        if index < 0 or have.field(index).type != want.type:
            raise BadInput(f"{path}: column {want.name!r} is not as {name} needs it", hint="record again")


def _read(parquet: pq.ParquetFile, name: str, columns: Sequence[str] | None) -> pa.Table:
    """Return the wanted columns; those that an old file does not have are null."""
    wanted = list(columns) if columns else TABLES[name].names
    have = set(parquet.schema_arrow.names)
    table = parquet.read(columns=[column for column in wanted if column in have])
    for column in wanted:
        if column not in have:
            field = TABLES[name].field(column)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(wanted)
