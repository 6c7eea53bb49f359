"""Build columns from the catalogue of numbers, each with the function that makes its cells.

A field is a column and its cell of the entry at a place of the report. A table of a list of the report is
made of fields: a column is added by one line, with its title, unit, help, path and bound.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from zprof.model.cursor import Cursor, get, get_path, read
from zprof.model.metrics import METRICS
from zprof.model.quantities import Unit, parse_path, strip_unit
from zprof.reports.table import Cell, Column, Kind, LazyRows, Opens, Row

_UNIT_WORDS: Mapping[Unit, str] = {
    Unit.NS: "time",
    Unit.BYTES: "bytes",
    Unit.RATIO: "%",
    Unit.COUNT: "count",
    Unit.BYTES_PER_S: "bytes/s",
    Unit.FACTOR: "times",
}


class Field(Struct, frozen=True):
    """A column, and the function that makes its cell of the entry at a place."""

    column: Column
    cell: Callable[[Cursor], Cell]


def metric_field(
    path: str,
    *,
    in_ms: bool = True,
    wide: bool = False,
    from_width: int = 0,
    cell: Callable[[Cursor], Cell] | None = None,
) -> Field:
    """Return the field of a number of the catalogue: its name, unit, and the first sentence of its help.

    Args:
        path: Its path in the catalogue, such as ``time.collectives[].busbw_bytes_per_s``.
        in_ms: Show times in ms, which the header says.
        wide: Leave it out in text.
        from_width: Width of the table on a screen from which it is shown.
        cell: What makes its cells, if they are not the number itself.
    """
    metric, name = METRICS[path], parse_path(path).name
    is_in_ms = in_ms and metric.unit is Unit.NS
    column = Column(
        title=strip_unit(name).removesuffix(" ratio"),
        unit="ms" if is_in_ms else _UNIT_WORDS[metric.unit],
        help=metric.help.partition(". ")[0].removesuffix("."),
        wide=wide,
        from_width=from_width,
    )
    return Field(column, cell or (lambda place: read(place[name], in_ms=is_in_ms)))


def name_field(
    name: str,
    *,
    title: str = "",
    help: str = "",
    lifted: bool = False,
    show: Callable[[str], str] = str,
) -> Field:
    """Return the field of a name that comes from a recording; ``show`` formats it."""
    column = Column(
        title=title or name,
        kind=Kind.NAME,
        help=help,
        lifted=lifted,
        takes_rest=True,
    )
    return Field(column, lambda place: show(get(place[name])))


def make_rows(
    fields: Sequence[Field], places: Sequence[Cursor], opens: Opens = Opens.NOTHING
) -> Sequence[Row]:
    """Return a row for each entry of a list of the report, made when it is first drawn."""

    def make_row(number: int) -> Row:
        place = places[number]
        index = get_path(place).indices[-1]
        cells = tuple(field.cell(place) for field in fields)
        return Row(key=str(index), cells=cells, opens=opens, target=index)

    return LazyRows(len(places), make_row)
