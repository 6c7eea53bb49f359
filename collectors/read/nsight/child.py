"""Read one Nsight export under limits, from standard input into a private folder, in its own process.

Run as ``python -I -c BOOT ROOT FOLDER LIMITS`` by ``reader``. It writes the events of each rank
(``rank0.arrow``, …), with what describes it in the metadata of the schema, or ``error.json`` with one line.
"""

import json
import os
from pathlib import Path

import pyarrow as pa

from zprof.base.errors import BadInput
from zprof.collectors.read.nsight.database import HINT, NsightDatabase
from zprof.collectors.read.nsight.ranks import NUMBERS, NsightReader, RankEvents
from zprof.process.sandbox import Limits, apply_limits

ERROR, FACTS = "error.json", b"zprof"
#: The file, as the child sees it: SQLite reads a path, and this one names what is open already.
_INPUT = Path("/proc/self/fd/0")
_RESERVE_BYTES = 1 << 20


def main(folder: Path, limits: Limits) -> None:
    """Read standard input; write the ranks or the error."""
    reserve = bytearray(_RESERVE_BYTES)
    try:
        apply_limits(limits)
        for number, rank in enumerate(NsightReader(NsightDatabase(_INPUT)).list_ranks()):
            table = _make_table(rank)
            path = str(folder / f"rank{number}.arrow")
            with pa.OSFile(path, "wb") as target, pa.ipc.new_file(target, table.schema) as writer:
                writer.write_table(table)
        return
    except BadInput as error:
        answer = {"error": error.message, "hint": error.hint}
    except (MemoryError, pa.ArrowMemoryError):
        del reserve
        answer = {"error": f"reading it takes more than {limits.memory_bytes >> 20} MiB", "hint": HINT}
    except Exception as error:
        answer = {"error": f"it cannot be read ({type(error).__name__})", "hint": HINT}
    (folder / ERROR).write_text(json.dumps(answer), encoding="utf-8")


def _make_table(rank: RankEvents) -> pa.Table:
    columns = {name: pa.array(rank.numbers[name]) for name in NUMBERS}
    for name, texts in (("category", rank.categories), ("name", rank.names)):
        columns[name] = pa.array(texts, pa.string()).dictionary_encode()
    facts = {
        "rank": rank.rank,
        "world_size": rank.world_size,
        "devices": rank.devices,
        "host": rank.host,
        "has_nccl": rank.has_nccl,
        "arguments": [[row, values] for row, values in rank.arguments.items()],
    }
    return pa.table(columns).replace_schema_metadata({FACTS: json.dumps(facts).encode()})


def start(arguments: list[str]) -> None:
    """Run the child and exit without deallocating."""
    main(Path(arguments[0]), Limits(**json.loads(arguments[1])))
    os._exit(0)
