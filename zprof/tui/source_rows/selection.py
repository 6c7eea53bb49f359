"""Pick rows of the analysis's tables for a leaf of the report."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.paths import EVERY

#: The indices of a leaf, ``EVERY`` for all entries.
Indices = tuple[int, ...]
#: Returns the source rows of a number, for an analysis and the indices of its leaf: at most a few dozen, the
#: most relevant first.
Rows = Callable[[RunAnalysis, Indices], pd.DataFrame]
MAX_ROWS = 20
Entry = TypeVar("Entry")


def find_entry(entries: Sequence[Entry], indices: Indices) -> Entry | None:
    """Return the entry at the first index; None for ``[*]`` or an index out of range."""
    index = indices[0] if indices else EVERY
    return entries[index] if index != EVERY and index < len(entries) else None


def pick_top_rows(rows: pd.DataFrame, names: Sequence[str], by: str) -> pd.DataFrame:
    """Return the `MAX_ROWS` rows with the largest values of ``by``, limited to the columns that exist."""
    columns = [name for name in names if name in rows.columns]
    if by in rows.columns:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    return rows[columns].head(MAX_ROWS)
