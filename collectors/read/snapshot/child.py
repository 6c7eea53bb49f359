"""Read one snapshot under limits, from standard input into a private folder, in a separate process. Run as
``python -I -c BOOT ROOT FOLDER LIMITS`` by ``reader``.

It writes an Arrow IPC file per table and ``answer.json``: row counts, gaps and the starts of the histories,
or the error as one line.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import to_builtins

from zprof.base.errors import BadInput
from zprof.collectors.read.pickle_sandbox import load_plain_data
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.process.sandbox import Limits, apply_limits
from zprof.run.schema import TABLES

ANSWER = "answer.json"
DAMAGED_HINT = "this is not expected for a valid snapshot of its size: dump it again"
_MAX_GAPS = 200
_RESERVE_BYTES = 1 << 20


def main(folder: Path, limits: Limits) -> None:
    """Read standard input; write the answer, and the tables, if any."""
    # A snapshot is millions of small objects that live to the end: garbage collection would take half the
    # time.
    gc.disable()
    reserve = bytearray(_RESERVE_BYTES)
    try:
        apply_limits(limits)
        with open(0, "rb", closefd=False) as file:
            snapshot = load_plain_data(file)
        tables = convert_snapshot(snapshot, max_rows=os.fstat(0).st_size)
        answer = {
            "rows": {name: _write_table(folder, name, columns) for name, columns in tables.tables().items()},
            "gaps": [to_builtins(gap) for gap in tables.gaps[:_MAX_GAPS]],
            "history_begin_ns": tables.history_begin_ns,
        }
    except BadInput as error:
        answer = {"error": error.message, "hint": error.hint}
    except MemoryError:
        del reserve
        mebibytes = limits.memory_bytes >> 20
        answer = {"error": f"reading it takes more than {mebibytes} MiB", "hint": DAMAGED_HINT}
    except OSError as error:
        answer = _make_error(f"its tables cannot be written ({error.strerror})")
    except Exception as error:
        answer = _make_error(f"it cannot be read ({type(error).__name__})")
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _write_table(folder: Path, name: str, columns: dict[str, Any]) -> int:
    table = pa.table(columns, schema=TABLES[name])
    target = folder / f"{name}.arrow"
    with target.open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return int(table.num_rows)


def _make_error(reason: str) -> dict[str, Any]:
    return {"error": reason, "hint": "dump the snapshot again; if it fails again, please report it"}


def start(arguments: list[str]) -> None:
    """Run the child and exit without deallocating its millions of objects."""
    main(Path(arguments[0]), Limits(**json.loads(arguments[1])))
    sys.stdout.flush()
    os._exit(0)
