"""One row of the ``collectives`` table."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

#: Shapes in a file may multiply to anything.
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """A collective as one rank ran it; the fields are the columns of ``zprof.run.schema``."""

    kind: str
    group: str
    group_size: int
    sequence: int
    dtype: str
    bytes: int
    start_ns: int
    end_ns: int
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    unit: str | None = None
    stream: int | None = None
    peer_rank: int | None = None
    method: str


def collective_columns(rows: Sequence[CollectiveRow]) -> dict[str, list[Any]]:
    """The ``collectives`` table, by start."""
    rows = sorted(rows, key=lambda row: (row.start_ns, row.end_ns))
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(CollectiveRow)}
    return columns | {"bytes": [min(size, _MOST_BYTES) for size in columns["bytes"]]}
