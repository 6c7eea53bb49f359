"""Message sizes, wrapped modules and fitted links: what the collectives are made of.

Each takes the columns that there is room for: on a wide terminal the tables stand side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from zprof.model.time import LinkFit, MessageSizes, Time, UnitTime
from zprof.reports.shown.time_presenter import (
    bounded,
    most_exposed_units,
    sized_messages,
    telling_fits,
    telling_messages,
)
from zprof.tui.figures import Unit, figure
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT, bound_figure
from zprof.tui.pages.communication_names import bytes_cell, group_word, has_groups
from zprof.tui.session import Loaded
from zprof.tui.tables import MOST_ROWS, Cell, Column, Line, Table, Word

_SQUARE, _FEW_SQUARES, _MANY_SQUARES = "■", 4, 8
_ROOM_FOR_MANY = 67
_NOWHERE = 1 << 30
#: Columns of a table, with the room that each asks for; a column of groups has none where there is one.
Columns = Sequence[tuple[Column, int]]
Entry = TypeVar("Entry", MessageSizes, UnitTime, LinkFit)


def sizes_table(loaded: Loaded, room: int) -> Table:
    """Messages by size, in powers of four, those with most exposed time; in order of kind and size."""
    time = loaded.report.time
    known = sized_messages(time)
    shown = telling_messages(known, MOST_ROWS)
    scale = max((entry.count for entry in shown), default=0.0)
    scale /= _MANY_SQUARES if room >= _ROOM_FOR_MANY else _FEW_SQUARES
    table = Table(
        name="sizes",
        title="message sizes",
        columns=(),
        lines=tuple(
            Line(key=path, cells=_size(loaded, entry, path, scale))
            for path, entry in _paths("messages", time.messages, shown).items()
        ),
        help="How many messages of which size, in powers of four, what of their time is exposed, and the "
        "bus bandwidth that they reached. Small ones are bound by latency: see the fitted link.",
        note="" if known else "no sizes are known",
    )
    return _with_columns(table, _size_columns(many=has_groups(time)), room)


def _size_columns(*, many: bool) -> Columns:
    beside = 18 if many else 0
    return (
        (Column(title="sizes of"), 0),
        (Column(title="group"), 0 if many else _NOWHERE),
        (Column(title="from", says="bytes", numeric=True), 0),
        (Column(title="below", says="bytes", numeric=True), _ROOM_FOR_MANY + beside),
        (Column(title="n", says="messages a step", numeric=True), 0),
        (Column(title="", says="their number, to scale"), 58 + beside),
        (Column(title="exposed", says="in ms", numeric=True), 0),
        (Column(title="bus", says="bus bandwidth", numeric=True), 0),
    )


def _size(loaded: Loaded, entry: MessageSizes, path: str, scale: float) -> tuple[Cell, ...]:
    squares = max(1, round(entry.count / scale)) if entry.count > 0 else 0
    return (
        Word(entry.kind),
        group_word(entry.group),
        figure(loaded.tree, Unit.BYTES, f"{path}.at_least_bytes"),
        figure(loaded.tree, Unit.BYTES, f"{path}.below_bytes"),
        figure(loaded.tree, Unit.COUNT, f"{path}.count"),
        Word(_SQUARE * squares),
        figure(loaded.tree, Unit.MS, f"{path}.exposed_ns"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.busbw_bytes_per_s"),
    )


def units_table(loaded: Loaded, room: int) -> Table:
    """Wrapped modules, the one whose collectives are most exposed first."""
    time = loaded.report.time
    shown = most_exposed_units(time, MOST_ROWS)
    bound = bounded(time)
    table = Table(
        name="units",
        title="units (wrapped modules), most exposed first",
        columns=(),
        lines=tuple(
            Line(key=path, cells=_unit(loaded, entry, path, bound=(entry.kind, entry.group) in bound))
            for path, entry in _paths("units", time.units, shown).items()
        ),
        help="Exposed time by the wrapped module that a collective belongs to: sums of a step, mean over "
        "the loaded ranks of the group.",
        note=_of(len(shown), len(time.units)) if shown else "no collective says its module",
    )
    return _with_columns(table, _unit_columns(many=has_groups(time)), room)


def _unit_columns(*, many: bool) -> Columns:
    return (
        (Column(title="unit", says="the wrapped module"), 0),
        (Column(title="collective"), 0),
        (Column(title="group"), 0 if many else _NOWHERE),
        (Column(title="n", says="a step", numeric=True), 72 if many else 0),
        (Column(title="bytes", says="of the full tensors", numeric=True), 88 if many else 70),
        (Column(title="exp. wait", says="exposed waiting, in ms", numeric=True), 0),
        (Column(title="transfer", says="exposed transfer, in ms", numeric=True), 0),
    )


def _unit(loaded: Loaded, entry: UnitTime, path: str, *, bound: bool) -> tuple[Cell, ...]:
    least, most = (AT_LEAST, AT_MOST) if bound else (EXACT, EXACT)
    return (
        Word(entry.unit),
        Word(entry.kind),
        group_word(entry.group),
        figure(loaded.tree, Unit.COUNT, f"{path}.count"),
        bytes_cell(loaded, f"{path}.bytes", entry.kind, entry.bytes),
        bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_wait_ns", sign=least),
        bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_transfer_ns", sign=most),
    )


def fits_table(loaded: Loaded, room: int) -> Table:
    """Latency and bandwidth of the link, where messages of several sizes tell them apart."""
    time = loaded.report.time
    shown = telling_fits(time, MOST_ROWS)
    table = Table(
        name="fits",
        title="the link: time = latency + bytes / bandwidth",
        columns=(),
        lines=tuple(
            Line(key=path, cells=_fit(loaded, entry, path))
            for path, entry in _paths("fits", time.fits, shown).items()
        ),
        help="A line through the times of the messages, last start to first end, over their sizes. "
        "Messages of one size do not tell latency from bandwidth.",
        note="" if shown else _no_fit(time),
    )
    return _with_columns(table, _fit_columns(many=has_groups(time)), room)


def _no_fit(time: Time) -> str:
    sized = any(entry.bytes > 0 for entry in time.collectives)
    return "messages are too few, or of one size" if sized else "no sizes are known"


def _fit_columns(*, many: bool) -> Columns:
    beside = 18 if many else 0
    return (
        (Column(title="fit of"), 0),
        (Column(title="group"), 0 if many else _NOWHERE),
        (Column(title="latency", says="of one message", numeric=True), 0),
        (Column(title="bus", says="bus bandwidth of the fit", numeric=True), 0),
        (Column(title="algorithm", says="bandwidth as the caller sees it", numeric=True), 67 + beside),
        (Column(title="share", says="of latency in their times", numeric=True), 0),
        (Column(title="off by", says="median of |seen - fitted| / seen", numeric=True), 58),
        (Column(title="messages", numeric=True), 77 + beside),
        (Column(title="sizes", numeric=True), 84 + beside),
    )


def _fit(loaded: Loaded, entry: LinkFit, path: str) -> tuple[Cell, ...]:
    return (
        Word(entry.kind),
        group_word(entry.group),
        figure(loaded.tree, Unit.NS, f"{path}.latency_ns"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.busbw_bytes_per_s"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.algbw_bytes_per_s"),
        figure(loaded.tree, Unit.RATIO, f"{path}.latency_share_ratio"),
        figure(loaded.tree, Unit.RATIO, f"{path}.residual_ratio"),
        figure(loaded.tree, Unit.COUNT, f"{path}.messages"),
        figure(loaded.tree, Unit.COUNT, f"{path}.sizes"),
    )


def _paths(name: str, all_of: Sequence[Entry], shown: Sequence[Entry]) -> Mapping[str, Entry]:
    place = {id(entry): at for at, entry in enumerate(all_of)}
    return {f"time.{name}[{place[id(entry)]}]": entry for entry in shown}


def _of(shown: int, count: int) -> str:
    return f"{shown} of {count}" if count > shown else ""


def _with_columns(table: Table, columns: Columns, room: int) -> Table:
    """Only those columns that there is room for."""
    kept = [place for place, (_, least) in enumerate(columns) if least <= room]
    return replace(
        table,
        columns=tuple(columns[place][0] for place in kept),
        lines=tuple(replace(line, cells=tuple(line.cells[place] for place in kept)) for line in table.lines),
    )
