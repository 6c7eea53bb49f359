"""Read one Nsight export under limits, from standard input into a private folder, in its own process.

Run as ``python -I -c BOOT ROOT FOLDER LIMITS`` by ``reader``. It writes the events of each rank
(``rank0.arrow``, …), with what describes it in the metadata of the schema, or ``error.json`` with one line.
"""

import json
from pathlib import Path

import pyarrow as pa

from zprof.collectors.read.file_sandbox import run_child
from zprof.collectors.read.nsight.database import HINT, NsightDatabase
from zprof.collectors.read.nsight.ranks import NUMBERS, NsightReader, RankEvents

#: Metadata of a rank's table: what describes it, and the arguments of its events by row.
FACTS, ARGUMENTS = b"zprof", b"zprof.arguments"
#: The file, as the child sees it: SQLite reads a path, and this one names what is open already.
_INPUT = Path("/proc/self/fd/0")


def _write_tables(folder: Path) -> None:
    for number, rank in enumerate(NsightReader(NsightDatabase(_INPUT)).iterate_ranks()):
        table = _make_table(rank)
        path = str(folder / f"rank{number}.arrow")
        with pa.OSFile(path, "wb") as target, pa.ipc.new_file(target, table.schema) as writer:
            writer.write_table(table)


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
    }
    arguments = [[row, values] for row, values in rank.arguments.items()]
    return pa.table(columns).replace_schema_metadata(
        {FACTS: json.dumps(facts).encode(), ARGUMENTS: json.dumps(arguments).encode()}
    )


def start(arguments: list[str]) -> None:
    """Run the child."""
    run_child(arguments, _write_tables, HINT)
