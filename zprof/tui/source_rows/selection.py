"""Pick rows of the analysis's tables for a leaf of the report."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import pandas as pd

from zprof.analysis.analysis import RunAnalysis

_INDEX = re.compile(r"\[(\d+|\*)\]")
#: One entry per ``[...]`` of a leaf, None for ``[*]``.
Indices = tuple[int | None, ...]
#: Returns the source rows of a number, for an analysis and the indices of its leaf: at most a few dozen, the
#: most relevant first.
Rows = Callable[[RunAnalysis, Indices], pd.DataFrame]
MAX_ROWS = 20
Entry = TypeVar("Entry")


def parse_indices(leaf: str) -> Indices:
    """Return the indices of a leaf, None for ``[*]``."""
    return tuple(None if index == "*" else int(index) for index in _INDEX.findall(leaf))


def find_entry(entries: Sequence[Entry], indices: Indices) -> Entry | None:
    """Return the entry at the first index; None for ``[*]`` or an index out of range."""
    index = indices[0] if indices else None
    return entries[index] if index is not None and index < len(entries) else None


def pick_top_rows(rows: pd.DataFrame, names: Sequence[str], by: str) -> pd.DataFrame:
    """Return the `MAX_ROWS` rows with the largest values of ``by``, limited to the columns that exist."""
    columns = [name for name in names if name in rows.columns]
    if by in rows.columns:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    return rows[columns].head(MAX_ROWS)
