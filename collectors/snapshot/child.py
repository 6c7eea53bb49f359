"""The process that reads one snapshot: bound by limits, from standard input into a private folder.

It leaves there an Arrow IPC file a table and ``answer.json``: row counts, gaps and where the histories
begin, or the error as one line.  Run as ``python -I -c BOOT FOLDER LIMITS`` by ``parent``.
"""

import gc
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from zprof.collectors.snapshot.convert import tables_of
from zprof.collectors.snapshot.limits import Limits, apply
from zprof.collectors.snapshot.unpickle import load
from zprof.model.errors import BadInput
from zprof.run.schema import TABLES

ANSWER = "answer.json"
_DAMAGED = "no sound snapshot of its size does: dump it again"
_MOST_GAPS = 200
_RESERVE_BYTES = 1 << 20


def main(folder: Path, limits: Limits) -> None:
    """Read standard input; write the answer, and the tables where there are any."""
    # A snapshot is millions of small objects that all live to the end: collecting them takes half the time.
    gc.disable()
    reserve = bytearray(_RESERVE_BYTES)
    try:
        apply(limits)
        answer = _tables(folder, limits)
    except BadInput as error:
        answer = {"error": error.message, "hint": error.hint}
    except MemoryError:
        del reserve
        mebibytes = limits.memory_bytes >> 20
        answer = {"error": f"reading it takes more than {mebibytes} MiB", "hint": _DAMAGED}
    except OSError as error:
        answer = _failed(f"its tables cannot be written ({error.strerror})")
    except Exception as error:
        answer = _failed(f"it cannot be read ({type(error).__name__})")
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _tables(folder: Path, limits: Limits) -> dict[str, Any]:
    with open(0, "rb", closefd=False) as file:
        snapshot = load(file)
    tables = tables_of(snapshot, most_rows=limits.rows)
    return {
        "rows": {name: _write(folder, name, columns) for name, columns in tables.tables().items()},
        "gaps": [asdict(gap) for gap in tables.gaps[:_MOST_GAPS]],
        "history_begin_ns": tables.history_begin_ns,
    }


def _write(folder: Path, name: str, columns: dict[str, Any]) -> int:
    table = pa.table(columns, schema=TABLES[name])
    target = str(folder / f"{name}.arrow")
    with pa.OSFile(target, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return int(table.num_rows)


def _failed(reason: str) -> dict[str, Any]:
    return {"error": reason, "hint": "dump the snapshot again; if it fails again, please report it"}


def start(arguments: list[str]) -> None:
    """The child's whole life; it ends without taking its millions of objects apart."""
    main(Path(arguments[0]), Limits(**json.loads(arguments[1])))
    sys.stdout.flush()
    os._exit(0)
