"""Tables of an analysis that tests write as pandas frames."""

from typing import Any

import numpy as np
import pandas as pd

from zprof.analysis.columns import Column, Columns, Mask, OptionalInts, Texts


def as_columns(frame: pd.DataFrame) -> Columns:
    """Return a frame as the analysis has it, its rows numbered anew."""
    return Columns({name: _as_column(frame[name]) for name in frame.columns})


def changed(table: Columns, rows: Mask | None = None, **values: Any) -> Columns:
    """Return the table with these values in the marked rows, or in all; a list has one for each row."""
    frame = table.to_frame()
    for name, value in values.items():
        if rows is None:
            frame[name] = value
        else:
            frame[name] = frame[name].astype(object).where(~rows, value).infer_objects()
    return as_columns(frame)


def selected(table: Columns, rows: Mask) -> Columns:
    """Return the marked rows as a table of its own."""
    return table.at(rows).renumber()


def _as_column(series: "pd.Series[Any]") -> Column:
    if series.dtype == object or str(series.dtype) in ("str", "string", "category"):
        if len(series) and all(isinstance(value, int) or pd.isna(value) for value in series):
            return OptionalInts.of(None if pd.isna(value) else int(value) for value in series)
        return Texts.of(None if pd.isna(text) else str(text) for text in series)
    if str(series.dtype) == "Int64":
        return OptionalInts(series.fillna(0).to_numpy(np.int64), series.notna().to_numpy(bool))
    return series.to_numpy()
