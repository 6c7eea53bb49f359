"""A table of the analysis as a table of a page: columns by the units in their names."""

import pandas as pd

from zprof.tui.figures import Figure
from zprof.tui.tables import Cell, Column, Line, Table, Word
from zprof.tui.units import unit_of, word_of

_MOST_ROWS = 50
_FIRST = ("step", "rank")


def rows_table(rows: pd.DataFrame, asked: str = "") -> Table:
    """Its first rows: step, rank, the column that was ``asked`` for, then the others.

    Numbers name no leaf: they are what leaves are made of.
    """
    shown = rows.head(_MOST_ROWS)
    first = [name for name in (*_FIRST, asked) if name in shown.columns]
    shown = shown[[*first, *(name for name in shown.columns if name not in first)]]
    names = [str(name) for name in shown.columns]
    columns = tuple(Column(title=word_of(name), numeric=_is_number(shown[name])) for name in names)
    lines = [
        Line(key=str(place), cells=tuple(_cell(name, value) for name, value in zip(names, row, strict=True)))
        for place, row in enumerate(shown.itertuples(index=False))
    ]
    note = f"first {len(shown)} of {len(rows)}" if len(rows) > len(shown) else ""
    return Table(name="rows", title="measured from", columns=columns, lines=tuple(lines), note=note)


def _is_number(column: "pd.Series[float]") -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype)


def _cell(name: str, value: object) -> Cell:
    if isinstance(value, bool) or (not isinstance(value, int | float) and not hasattr(value, "item")):
        return Word("" if value is None or value is pd.NA else str(value))
    number = None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]
    return Figure(value=number, unit=unit_of(name), leaves=())
