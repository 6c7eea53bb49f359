"""Rows behind a number: the entry of the report that it is of, and the decisive rows of a table."""

from collections.abc import Sequence
from typing import TypeVar

import pandas as pd

from zprof.tui.meanings.meaning import Indices

MOST_ROWS = 20
Entry = TypeVar("Entry")


def entry_at(entries: Sequence[Entry], at: Indices) -> Entry | None:
    """The entry that the first index names; None for ``[*]``, and where there is none."""
    place = at[0] if at else None
    return entries[place] if place is not None and place < len(entries) else None


def decisive(rows: pd.DataFrame, names: Sequence[str], by: str) -> pd.DataFrame:
    """Those with most of a column first, in these columns as far as they are there."""
    shown = [name for name in names if name in rows.columns]
    if by in rows.columns:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    return rows[shown].head(MOST_ROWS)
