"""Render rows of a query: as text, CSV or JSON."""

import csv
import io
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from zprof.base.formatting import printable, shorten

if TYPE_CHECKING:
    import pyarrow as pa

    from zprof.query.database import Answer
#: Wider cells are shortened in text.
_MAX_CELL = 60
#: Larger numbers are shown without decimals.
_MAX_EXACT = 1e6
#: Width of text that is not for a terminal: no row is wrapped.
_UNLIMITED = 10_000


def render_text(answer: "Answer", columns: int | None = None) -> str:
    """Return aligned columns within a width, and how many rows there are."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = answer.rows
    table = Table(box=None, pad_edge=False, header_style="")
    for field in rows.schema:
        table.add_column(Text(printable(field.name)), justify="right" if _is_number(field.type) else "left")
    for row in rows.to_pylist():
        table.add_row(*(Text(shorten(_format_cell(value), _MAX_CELL)) for value in row.values()))
    stream = io.StringIO()
    Console(file=stream, width=columns or _UNLIMITED, color_system=None).print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    more = ", and more: raise --rows" if answer.is_cut else ""
    return "\n".join([*lines, f"({count}{more})", ""])


def render_csv(answer: "Answer") -> str:
    """Return the rows with a header; an unknown value is empty, control characters are escaped."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(printable, answer.rows.column_names))
    for row in answer.rows.to_pylist():
        writer.writerow("" if value is None else _format_cell(value) for value in row.values())
    return stream.getvalue()


def render_json(answer: "Answer") -> str:
    """Return columns with types, rows, and whether rows were cut off; infinite numbers are null."""
    columns, rows = make_plain_rows(answer)
    document = {"columns": columns, "rows": rows, "is_cut": answer.is_cut}
    return json.dumps(document, allow_nan=False) + "\n"


def make_plain_rows(answer: "Answer") -> tuple[dict[str, str], list[list[Any]]]:
    """Return the type of each column, and rows of values that JSON can hold."""
    columns = {field.name: str(field.type) for field in answer.rows.schema}
    return columns, [list(map(_make_plain, row.values())) for row in answer.rows.to_pylist()]


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float | Decimal):
        return f"{value:.6g}" if abs(float(value)) < _MAX_EXACT else f"{value:.0f}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_cell, value))}]"
    return printable(str(value))


def _make_plain(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list):
        return list(map(_make_plain, value))
    return value if value is None or isinstance(value, int | bool | str) else str(value)
