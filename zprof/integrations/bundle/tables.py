"""The collectives of a rank with stand-ins for names: what findings rest on, so that support can ask more.

The columns are chosen by an allow-list; events are not among them, because their names are the program's.
"""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.integrations.bundle.allowed import group_of
from zprof.integrations.bundle.names import Names
from zprof.run.reader import Run

_PLAIN = (
    "group_size",
    "sequence",
    "bytes",
    "start_ns",
    "end_ns",
    "launch_start_ns",
    "launch_end_ns",
    "wait_start_ns",
    "wait_end_ns",
    "stream",
    "peer_rank",
)
#: Texts of closed sets; what else stands there is replaced.
_OWN_TEXTS = ("kind", "dtype", "method")


def collectives_of(run: Run, rank: int, names: Names) -> bytes:
    """The table as a Parquet file.

    Raises:
        BadInput: it is damaged.
    """
    table = run.table(rank, "collectives")
    columns = {name: table.column(name) for name in _PLAIN}
    columns |= {name: _mapped(table.column(name), names.scrubbed) for name in _OWN_TEXTS}
    columns["group"] = _mapped(table.column("group"), lambda text: group_of(text, names))
    columns["unit"] = _mapped(table.column("unit"), lambda text: names.of(text, "module"))
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written, compression="zstd")
    return written.getvalue()


def _mapped(column: pa.ChunkedArray, change: Callable[[str], str]) -> pa.Array:
    """Each distinct text changed once."""
    encoded = column.unify_dictionaries().combine_chunks()
    words = pa.array([change(word) for word in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, words).cast(pa.string())
