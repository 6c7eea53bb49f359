"""Read one operation timeline under limits, from standard input into a private folder, in its own process.

Run as ``python -I -c BOOT ROOT FOLDER LIMITS`` by ``reader``. It writes ``operations.arrow``, or
``error.json`` with one line.

The file is a Parquet table with one row per operation and these columns, as published with "Understanding
Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): ``dp_rank``, ``stage``, ``rank``,
``step``, ``optype``, ``start_ts`` and ``duration`` in seconds, ``seq_id``, and optionally ``mc``, ``gmc`` and
``mb_id``. ``zprof.run.schema`` describes them under the names of a run.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zprof.base.errors import BadInput
from zprof.collectors.read.file_sandbox import run_child
from zprof.run.schema import OPERATIONS
from zprof.run.table_reader import join_chunks, make_masked, make_texts, read_numbers

TABLE = "operations.arrow"
MAX_ROWS = 20_000_000
HINT = "pass a Parquet file with the columns that docs/traces.md lists"
#: Columns of a run by the file's names: whole numbers from -1 (none), and times in seconds.
_NUMBERS = {
    "dp_rank": "dp_rank",
    "stage": "stage",
    "rank": "rank",
    "step": "step",
    "seq_id": "sequence",
    "mc": "chunk",
    "gmc": "model_chunk",
    "mb_id": "micro_batch",
}
_OPTIONAL = frozenset({"mc", "gmc", "mb_id"})
_TIMES = {"start_ts": "start_ns", "duration": "duration_ns"}
_TYPE = "optype"
_MAX_NUMBERS = {"dp_rank": 1 << 20, "stage": 1 << 16, "rank": 1 << 20, "step": 1 << 40}
_MAX_NUMBER = 1 << 31
#: Starts may be Unix times; a step takes less than a month.
_MAX_TIMES = {"start_ts": 4e9, "duration": 3e6}
_MAX_TYPES, _MAX_TYPE_LENGTH = 1_000, 200


def _write_table(folder: Path) -> None:
    with open(0, "rb", closefd=False) as file:
        table = _convert(pq.ParquetFile(file))
    with (folder / TABLE).open("wb") as target, pa.ipc.new_file(target, OPERATIONS) as writer:
        writer.write_table(table)


def _convert(file: pq.ParquetFile) -> pa.Table:
    """Return the table of a run.

    Raises:
        BadInput: A column is missing or has impossible values.
    """
    rows, names = file.metadata.num_rows, set(file.schema_arrow.names)
    if not 0 < rows <= MAX_ROWS:
        raise BadInput(f"{rows:,} operations (possible: 1 to {MAX_ROWS:,})", hint=HINT)
    missing = [name for name in (*_NUMBERS, *_TIMES, _TYPE) if name not in names | _OPTIONAL]
    if missing:
        raise BadInput(f"no column {', '.join(missing)}", hint=HINT)
    present = [name for name in (*_NUMBERS, *_TIMES, _TYPE) if name in names]
    table = file.read(columns=present, use_threads=False)
    if table.num_rows != rows:
        raise BadInput("its row count differs from its metadata", hint=HINT)
    columns = {_TYPE: _read_types(table.column(_TYPE))}
    for name in _NUMBERS:
        values = _read(table, name) if name in names else np.full(rows, -1)
        if values.dtype.kind not in "iu":
            raise BadInput(f"column {name} has no whole numbers", hint=HINT)
        low = -1 if name in _OPTIONAL else 0
        high = _MAX_NUMBERS.get(name, _MAX_NUMBER)
        if values.min() < low or values.max() >= high:
            raise BadInput(f"column {name} has numbers outside {low} to {high - 1}", hint=HINT)
        columns[_NUMBERS[name]] = make_masked(values.astype(np.int64), pa.int64(), np.zeros(rows, np.bool_))
    for name, limit in _MAX_TIMES.items():
        seconds = _read(table, name).astype(np.float64)
        min_s = 0.0 if name == "duration" else -limit
        if not (np.isfinite(seconds).all() and seconds.min() >= min_s and seconds.max() <= limit):
            raise BadInput(f"column {name} has times outside {min_s:g} to {limit:g} s", hint=HINT)
        times_ns = np.rint(1e9 * seconds).astype(np.int64)
        columns[_TIMES[name]] = make_masked(times_ns, pa.int64(), np.zeros(rows, np.bool_))
    columns["operation"] = columns.pop(_TYPE)
    return pa.Table.from_arrays([columns[field.name] for field in OPERATIONS], schema=OPERATIONS)


def _read(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name)
    if column.null_count:
        raise BadInput(f"column {name} lacks values", hint=HINT)
    try:
        return read_numbers(column)
    except TypeError:
        raise BadInput(f"column {name} has no numbers", hint=HINT) from None


def _read_types(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return the types of the operations, checked and encoded."""
    values = join_chunks(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    if not pa.types.is_string(values.dictionary.type) or values.null_count or values.dictionary.null_count:
        raise BadInput(f"column {_TYPE} lacks names", hint=HINT)
    words = values.dictionary.to_pylist()
    if len(words) > _MAX_TYPES or any(len(word) > _MAX_TYPE_LENGTH for word in words):
        raise BadInput(f"column {_TYPE} has more than {_MAX_TYPES} names, or a very long one", hint=HINT)
    codes = read_numbers(values.indices).astype(np.int32)
    return pa.DictionaryArray.from_arrays(
        make_masked(codes, pa.int32(), np.zeros(len(codes), np.bool_)), make_texts(words)
    )


def start(arguments: list[str]) -> None:
    """Run the child."""
    run_child(arguments, _write_table, HINT)
