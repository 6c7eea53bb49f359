"""Tables as the analysis reads them from a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from zprof.analysis.columns import Columns
from zprof.run.schema import TABLES


def table_of(name: str, columns: Mapping[str, Any]) -> Columns:
    return Columns.from_arrow(pa.table(dict(columns), schema=TABLES[name]))


def table_of_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """What a row lacks is unknown."""
    return Columns.from_arrow(pa.Table.from_pylist([dict(row) for row in rows], schema=TABLES[name]))
