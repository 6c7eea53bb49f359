"""Message sizes, wrapped modules and fitted links: what the collectives are made of.

On a wide terminal the tables stand side by side: columns are shown from the width of the table itself.
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
from zprof.tui.figures import Unit, figure
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT, bound_figure
from zprof.tui.pages.communication_names import bytes_cell, group_word, has_groups
from zprof.tui.pages.made_lines import MadeLines, most_of
from zprof.tui.session import Loaded
from zprof.tui.tables import MOST_LINES, Cell, Column, Line, Table, Word, numeric

_SQUARE, _MOST_SQUARES = "■", 8
#: Columns that a column of groups takes from others.
_GROUPS = 18
_NOWHERE = 1 << 30
_LATENCY = "latency as ranks see it, waits for processors in it"
Entry = TypeVar("Entry", MessageSizes, UnitTime, LinkFit)


def sizes_table(loaded: Loaded) -> Table:
    """Messages by size, in powers of four, those with most exposed time; in order of kind and size."""
    time = loaded.report.time
    known, many = sized_messages(time), has_groups(time)
    shown = telling_messages(known, MOST_LINES)
    scale = max((entry.count for entry in shown), default=0.0) / _MOST_SQUARES
    return Table(
        name="sizes",
        title="message sizes",
        columns=_size_columns(_GROUPS if many else 0),
        lines=_made("messages", time.messages, shown, lambda entry, path: _size(loaded, entry, path, scale)),
        help="How many messages of which size, in powers of four, what of their time is exposed, and the "
        "bus bandwidth that they reached. Small ones are bound by latency: see the fitted link.",
        note=most_of(len(shown), len(known), "most exposed") if known else "no sizes are known",
    )


def _size_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="sizes of"),
        _group_column(groups),
        numeric("from", "bytes"),
        numeric("below", "bytes", from_width=69 + groups),
        numeric("n", "messages a step, of one rank"),
        Column(title="", says="their number, to scale", from_width=62 + groups),
        numeric("exposed", "in ms, waiting and transfer"),
        numeric("bus", "bus bandwidth"),
    )


def _group_column(groups: int) -> Column:
    """All of one group say it in the title of the collectives."""
    return Column(title="group", from_width=0 if groups else _NOWHERE)


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


def units_table(loaded: Loaded) -> Table:
    """Wrapped modules, the one whose collectives are most exposed first."""
    time = loaded.report.time
    shown, bound = most_exposed_units(time, MOST_LINES), bounded(time)
    return Table(
        name="units",
        title="units (wrapped modules), most exposed first",
        columns=_unit_columns(_GROUPS if has_groups(time) else 0),
        lines=_made("units", time.units, shown, lambda entry, path: _unit(loaded, entry, path, bound)),
        help="Exposed time by the wrapped module that a collective belongs to: sums of a step, mean over "
        "the loaded ranks of the group.",
        note=most_of(len(shown), len(time.units), "first") if shown else "no collective says its module",
    )


def _unit_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="unit", says="the wrapped module"),
        Column(title="collective"),
        _group_column(groups),
        numeric("n", "a step", from_width=74 if groups else 0),
        numeric("bytes", "of the full tensors", from_width=72 + groups),
        numeric("exp. wait", "exposed waiting, in ms"),
        numeric("exp. transfer", "exposed transfer, in ms"),
    )


def _unit(loaded: Loaded, entry: UnitTime, path: str, bound: frozenset[tuple[str, str]]) -> tuple[Cell, ...]:
    least, most = (AT_LEAST, AT_MOST) if (entry.kind, entry.group) in bound else (EXACT, EXACT)
    return (
        Word(entry.unit),
        Word(entry.kind),
        group_word(entry.group),
        figure(loaded.tree, Unit.COUNT, f"{path}.count"),
        bytes_cell(loaded, f"{path}.bytes", entry.kind, entry.bytes),
        bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_wait_ns", sign=least),
        bound_figure(loaded.tree, Unit.MS, f"{path}.exposed_transfer_ns", sign=most),
    )


def fits_table(loaded: Loaded) -> Table:
    """Latency and bandwidth of the link, where messages of several sizes tell them apart."""
    time = loaded.report.time
    shown = telling_fits(time, MOST_LINES)
    return Table(
        name="fits",
        title="the link: time = latency + bytes / bandwidth",
        columns=_fit_columns(_GROUPS if has_groups(time) else 0),
        lines=_made("fits", time.fits, shown, lambda entry, path: _fit(loaded, entry, path)),
        help="A line through the times of the messages, last start to first end, over their sizes. "
        "Messages of one size do not tell latency from bandwidth. Latency is what the ranks see of it: "
        "processes that wait for a processor, or wake up late, are in it, so that it may be many times the "
        "link's.",
        note=f"{most_of(len(shown), len(time.fits), 'first')}{_LATENCY}" if shown else _no_fit(time),
    )


def _no_fit(time: Time) -> str:
    sized = any(entry.bytes > 0 for entry in time.collectives)
    return "messages are too few, or of one size" if sized else "no sizes are known"


def _fit_columns(groups: int) -> tuple[Column, ...]:
    return (
        Column(title="fit of"),
        _group_column(groups),
        numeric("latency", "of one message as the ranks see it, waits for processors in it"),
        numeric("bus", "bus bandwidth of the fit"),
        numeric("algorithm", "bandwidth as the caller sees it", from_width=69 + groups),
        numeric("share", "what of these messages' time is latency: larger ones would save it"),
        numeric(
            "off by", "how far messages are from the line: median of |seen - fitted| / seen", from_width=60
        ),
        numeric(
            "messages", "each once for all its ranks, the window's first left out", from_width=79 + groups
        ),
        numeric("sizes", "how many different ones", from_width=86 + groups),
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


def _made(
    name: str,
    all_of: Sequence[Entry],
    shown: Sequence[Entry],
    cells: Callable[[Entry, str], tuple[Cell, ...]],
) -> MadeLines:
    """Lines of what is shown of a list of the report, with its path there."""
    places = {id(entry): at for at, entry in enumerate(all_of)}

    def line(at: int) -> Line:
        path = f"time.{name}[{places[id(shown[at])]}]"
        return Line(key=path, cells=cells(shown[at], path))

    return MadeLines(len(shown), line)
