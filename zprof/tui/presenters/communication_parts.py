"""Tables that break collectives down: message sizes, units (wrapped modules), fitted links.

The tables are side by side in a wide terminal, so columns are shown by the width of the table itself.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from zprof.model.time import LinkFit, MessageSizes, Time, UnitTime
from zprof.reports.presenters.time_figures import (
    bounded,
    most_exposed_units,
    sized_messages,
    telling_fits,
    telling_messages,
)
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, Unit, figure, make_bound_figure
from zprof.tui.presenters.communication import format_group, has_groups, make_bytes_cell
from zprof.tui.session import LoadedRun
from zprof.tui.tables import (
    MAX_LINES,
    Cell,
    Column,
    LazyLines,
    Line,
    Table,
    TextCell,
    format_truncation,
    numeric_column,
)

_SQUARE, _MAX_SQUARES = "■", 8
#: Columns that a group column takes from the others.
_GROUP_COLUMN_WIDTH = 18
_NEVER_SHOWN = 1 << 30
_LATENCY = "latency as ranks see it, waits for processors in it"
Entry = TypeVar("Entry", MessageSizes, UnitTime, LinkFit)


def build_sizes_table(loaded: LoadedRun) -> Table:
    """Return messages by size in powers of four: the most exposed ones, by kind and size."""
    time = loaded.report.time
    known, many = sized_messages(time), has_groups(time)
    shown = telling_messages(known, MAX_LINES)
    scale = max((entry.count for entry in shown), default=0.0) / _MAX_SQUARES
    return Table(
        name="sizes",
        title="message sizes",
        columns=_size_columns(_GROUP_COLUMN_WIDTH if many else 0),
        lines=_make_lines(
            "messages", time.messages, shown, lambda entry, path: _size_cells(loaded, entry, path, scale)
        ),
        help="How many messages of which size, in powers of four, what of their time is exposed, and the "
        "bus bandwidth that they reached. Small ones are bound by latency: see the fitted link.",
        note=format_truncation(len(shown), len(known), "most exposed") if known else "no sizes are known",
    )


def _size_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="sizes of"),
        _group_column(groups),
        numeric_column("from", "bytes"),
        numeric_column("below", "bytes", from_width=69 + groups),
        numeric_column("n", "messages per step, of one rank"),
        Column(title="", says="their number, to scale", from_width=62 + groups),
        numeric_column("exposed", "in ms, waiting and transfer"),
        numeric_column("bus", "bus bandwidth"),
    )


def _group_column(groups: int) -> Column:
    """Return the group column, hidden if there is a single group, which the title names."""
    return Column(title="group", from_width=0 if groups else _NEVER_SHOWN)


def _size_cells(loaded: LoadedRun, entry: MessageSizes, path: str, scale: float) -> tuple[Cell, ...]:
    squares = max(1, round(entry.count / scale)) if entry.count > 0 else 0
    return (
        TextCell(entry.kind),
        format_group(entry.group),
        figure(loaded.tree, Unit.BYTES, f"{path}.at_least_bytes"),
        figure(loaded.tree, Unit.BYTES, f"{path}.below_bytes"),
        figure(loaded.tree, Unit.COUNT, f"{path}.count"),
        TextCell(_SQUARE * squares),
        figure(loaded.tree, Unit.MS, f"{path}.exposed_ns"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.busbw_bytes_per_s"),
    )


def build_units_table(loaded: LoadedRun) -> Table:
    """Return wrapped modules, the one with the most exposed collectives first."""
    time = loaded.report.time
    shown, bound = most_exposed_units(time, MAX_LINES), bounded(time)
    return Table(
        name="units",
        title="units (wrapped modules), most exposed first",
        columns=_unit_columns(_GROUP_COLUMN_WIDTH if has_groups(time) else 0),
        lines=_make_lines(
            "units", time.units, shown, lambda entry, path: _unit_cells(loaded, entry, path, bound)
        ),
        help="Exposed time by the wrapped module that a collective belongs to: sums of a step, mean over "
        "the loaded ranks of the group.",
        note=format_truncation(len(shown), len(time.units), "first")
        if shown
        else "no collective says its module",
    )


def _unit_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="unit", says="the wrapped module"),
        Column(title="collective"),
        _group_column(groups),
        numeric_column("n", "per step", from_width=74 if groups else 0),
        numeric_column("bytes", "of the full tensors", from_width=72 + groups),
        numeric_column("exp. wait", "exposed waiting, in ms"),
        numeric_column("exp. transfer", "exposed transfer, in ms"),
    )


def _unit_cells(
    loaded: LoadedRun, entry: UnitTime, path: str, bound: frozenset[tuple[str, str]]
) -> tuple[Cell, ...]:
    least, most = (AT_LEAST, AT_MOST) if (entry.kind, entry.group) in bound else (EXACT, EXACT)
    return (
        TextCell(entry.unit),
        TextCell(entry.kind),
        format_group(entry.group),
        figure(loaded.tree, Unit.COUNT, f"{path}.count"),
        make_bytes_cell(loaded, f"{path}.bytes", entry.kind, entry.bytes),
        make_bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_wait_ns", sign=least),
        make_bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_transfer_ns", sign=most),
    )


def build_fits_table(loaded: LoadedRun) -> Table:
    """Return the fitted latency and bandwidth of links with messages of several sizes."""
    time = loaded.report.time
    shown = telling_fits(time, MAX_LINES)
    return Table(
        name="fits",
        title="the link: time = latency + bytes / bandwidth",
        columns=_fit_columns(_GROUP_COLUMN_WIDTH if has_groups(time) else 0),
        lines=_make_lines("fits", time.fits, shown, lambda entry, path: _fit_cells(loaded, entry, path)),
        help="A line through the times of the messages, last start to first end, over their sizes. "
        "Messages of one size do not tell latency from bandwidth. Latency is what the ranks see of it: "
        "processes that wait for a processor, or wake up late, are in it, so that it may be many times the "
        "link's.",
        note=f"{format_truncation(len(shown), len(time.fits), 'first')}{_LATENCY}"
        if shown
        else _explain_no_fit(time),
    )


def _explain_no_fit(time: Time) -> str:
    sized = any(entry.bytes > 0 for entry in time.collectives)
    return "messages are too few, or of one size" if sized else "no sizes are known"


def _fit_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="fit of"),
        _group_column(groups),
        numeric_column("latency", "of one message as the ranks see it, waits for processors in it"),
        numeric_column("bus", "bus bandwidth of the fit"),
        numeric_column("algorithm", "bandwidth as the caller sees it", from_width=69 + groups),
        numeric_column("share", "what of these messages' time is latency: larger ones would save it"),
        numeric_column(
            "off by", "how far messages are from the line: median of |seen - fitted| / seen", from_width=60
        ),
        numeric_column(
            "messages", "each once for all its ranks, the window's first left out", from_width=79 + groups
        ),
        numeric_column("sizes", "how many different ones", from_width=86 + groups),
    )


def _fit_cells(loaded: LoadedRun, entry: LinkFit, path: str) -> tuple[Cell, ...]:
    return (
        TextCell(entry.kind),
        format_group(entry.group),
        figure(loaded.tree, Unit.NS, f"{path}.latency_ns"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.busbw_bytes_per_s"),
        figure(loaded.tree, Unit.BYTES_PER_S, f"{path}.algbw_bytes_per_s"),
        figure(loaded.tree, Unit.RATIO, f"{path}.latency_share_ratio"),
        figure(loaded.tree, Unit.RATIO, f"{path}.residual_ratio"),
        figure(loaded.tree, Unit.COUNT, f"{path}.messages"),
        figure(loaded.tree, Unit.COUNT, f"{path}.sizes"),
    )


def _make_lines(
    name: str,
    all_of: Sequence[Entry],
    shown: Sequence[Entry],
    cells: Callable[[Entry, str], tuple[Cell, ...]],
) -> LazyLines:
    """Return lazy lines of the shown entries, each with its path in the report."""
    places = {id(entry): at for at, entry in enumerate(all_of)}

    def line(at: int) -> Line:
        path = f"time.{name}[{places[id(shown[at])]}]"
        return Line(key=path, cells=cells(shown[at], path))

    return LazyLines(len(shown), line)
