"""Tables of an analysis in tests: from pandas frames, and with other values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from zprof.analysis.columns import Column, Columns, Mask, OptionalInts, Texts, make_column


def as_columns(frame: pd.DataFrame) -> Columns:
    """Return a frame as the analysis has it, its rows numbered anew."""
    return Columns({name: _as_column(frame[name]) for name in frame.columns})


def changed(table: Columns, rows: Mask | None = None, **values: Any) -> Columns:
    """Return the table with these values in the marked rows, or in all; None is unknown.

    A value is that of all rows; an array, a list or a column has one for each.
    """
    return table.with_columns(
        **{name: _change_column(table, name, rows, value) for name, value in values.items()}
    )


def selected(table: Columns, rows: Mask) -> Columns:
    """Return the marked rows as a table of its own."""
    return table.at(rows).renumber()


def _change_column(table: Columns, name: str, rows: Mask | None, value: Any) -> Column:
    if isinstance(value, OptionalInts | Texts) and rows is None:
        return value
    is_scalar = value is None or isinstance(value, str) or np.ndim(value) == 0
    listed = [_plain(value)] * len(table) if is_scalar else [_plain(each) for each in value]
    if rows is not None:
        before = table[name].tolist()
        listed = [new if mark else old for new, old, mark in zip(listed, before, rows, strict=True)]
    return _make_column(listed, is_text=name in table and isinstance(table[name], Texts))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _make_column(values: Sequence[Any], *, is_text: bool) -> Column:
    """Return the values as a column; those that are all unknown are numbers unless said otherwise."""
    return make_column(values) if is_text or any(values) else _make_numbers(values)


def _make_numbers(values: Sequence[Any]) -> Column:
    if not values:
        return np.zeros(0, dtype=np.int64)
    return OptionalInts.of(values) if None in values else make_column(values)


def _as_column(series: "pd.Series[Any]") -> Column:
    if series.dtype == object or str(series.dtype) in ("str", "string", "category"):
        return make_column([None if pd.isna(value) else _plain(value) for value in series])
    if str(series.dtype) == "Int64":
        return OptionalInts(series.fillna(0).to_numpy(np.int64), series.notna().to_numpy(bool))
    return series.to_numpy()
