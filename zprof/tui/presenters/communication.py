"""The table of collectives by kind, group and element type, and the split of one of them.

The table has exposed and hidden time, wait and transfer, and bandwidth.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zprof.model.collectives import CollectiveKind
from zprof.model.formatting import printable, shorten
from zprof.model.gaps import GapKind
from zprof.model.time import CollectiveTime, Time
from zprof.reports.presenters.run_words import group_name
from zprof.reports.presenters.time_figures import is_unknown_size, per
from zprof.tui.figures import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    UNKNOWN,
    Aggregation,
    Figure,
    Unit,
    figure,
    make_bound_figure,
)
from zprof.tui.session import LoadedRun
from zprof.tui.tables import (
    MAX_LINES,
    Cell,
    Column,
    LazyLines,
    Line,
    Opens,
    Table,
    TextCell,
    format_truncation,
)

_MS = "in ms, "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A column, and the function that makes its cell for the collective at an index of the report."""

    column: Column
    cell: Callable[[LoadedRun, int], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Time of one kind of collective, split into hidden, exposed wait and exposed transfer."""

    name: str
    hidden: Figure
    wait: Figure
    transfer: Figure


def build_collectives_table(loaded: LoadedRun) -> Table:
    """Return one row per kind, group and element type, the most exposed first."""
    time = loaded.report.time
    fields = _fields(time)
    return Table(
        name="collectives",
        title=format_title(time),
        columns=tuple(field.column for field in fields),
        lines=LazyLines(
            min(MAX_LINES, len(time.collectives)),
            lambda at: Line(
                key=str(at),
                cells=tuple(field.cell(loaded, at) for field in fields),
                opens=Opens.COLLECTIVE,
                target=at,
            ),
        ),
        help=_HELP,
        note=_format_note(loaded),
    )


_HELP = (
    "What each kind of collective costs: sums of a step, mean over the loaded ranks of its group. total = "
    "hidden + exposed, and total = wait + transfer, hidden or not: the line below has what of both is "
    "exposed. A finding's times and counts are without the first collective of each group in the window, "
    "which carries the start of the profiler. With several groups the rows do not add up to the step: each "
    "is a mean of its own ranks; the lines at the bottom have the sum that the ledger agrees with. enter on "
    "a name: its worst instances."
)


def _format_note(loaded: LoadedRun) -> str:
    time = loaded.report.time
    if not time.collectives:
        reasons = [gap.reason for gap in loaded.report.gaps if gap.kind is GapKind.NO_COLLECTIVES]
        return reasons[0] if reasons else "none ran in these steps"
    bound = "≥ ≤ ranks are missing  " if any(entry.bound for entry in time.collectives) else ""
    most = format_truncation(MAX_LINES, len(time.collectives), "most exposed")
    return f"{most}{bound}hidden + exposed = wait + transfer, ms {per(time)}"


def _fields(time: Time) -> Sequence[_Field]:
    """Return the fields; with several groups, sizes and bandwidths need a wider terminal."""
    many, names = has_groups(time), format_kinds(time.collectives)
    types = len({entry.dtype for entry in time.collectives}) > 1
    shown = [
        _Field(
            column=Column(title="collective", says="its kind"), cell=lambda loaded, at: TextCell(names[at])
        )
    ]
    if many:
        shown.append(_Field(column=Column(title="group", says="its ranks"), cell=_group))
    if types:
        shown.append(_Field(column=Column(title="type", says="of an element", from_width=100), cell=_dtype))
    shown += [
        _number_field("n", "collectives per step, of one rank", "count", Unit.COUNT),
        _Field(
            column=Column(
                title="bytes", says="of the full tensors", numeric=True, from_width=100 if many else 0
            ),
            cell=_bytes,
        ),
        _number_field("total", _MS + "sum of their durations", "total_ns", Unit.MS, 110 if many else 90),
        _Field(column=Column(title="hidden", says=_MS + "total less exposed", numeric=True), cell=_hidden),
        _number_field(
            "exposed", _MS + "this rank computes nothing, and waits for them", "exposed_ns", Unit.MS
        ),
        _number_field(
            "wait", _MS + "before the last rank came, hidden or not", "wait_ns", Unit.MS, sign=AT_LEAST
        ),
        _number_field(
            "transfer", _MS + "after the last rank came, hidden or not", "transfer_ns", Unit.MS, sign=AT_MOST
        ),
        _number_field("bus", "bus bandwidth", "busbw_bytes_per_s", Unit.BYTES_PER_S, 110 if many else 0),
        *_wide_fields(many),
    ]
    return shown


def _wide_fields(many: bool) -> Sequence[_Field]:
    more = 20 if many else 0
    return [
        _number_field("algorithm", "bytes / time", "algbw_bytes_per_s", Unit.BYTES_PER_S, 110 + more),
        _number_field("launch delay", "median, from launch to start", "launch_delay_ns", Unit.NS, 118 + more),
        _number_field("exposed wait", _MS + "part of it", "exposed_wait_ns", Unit.MS, 150, sign=AT_LEAST),
        _number_field(
            "exposed transfer", _MS + "the rest", "exposed_transfer_ns", Unit.MS, 150, sign=AT_MOST
        ),
        _number_field(
            "dependency", "of the launch delay, what it had to wait for", "dependency_ns", Unit.NS, 170
        ),
        _number_field("tail", "median, from a rank's end to the last end", "tail_ns", Unit.NS, 170 + more),
        _number_field("intrinsic", "median, last start to first end", "intrinsic_ns", Unit.NS, 185 + more),
    ]  # fmt: skip


def _number_field(
    title: str, says: str, leaf: str, unit: Unit, from_width: int = 0, *, sign: str = EXACT
) -> _Field:
    def cell(loaded: LoadedRun, at: int) -> Cell:
        bound = sign if loaded.report.time.collectives[at].bound else EXACT
        return make_bound_figure(loaded.tree, unit, f"time.collectives[{at}].{leaf}", sign=bound)

    return _Field(column=Column(title=title, says=says, numeric=True, from_width=from_width), cell=cell)


def _group(loaded: LoadedRun, at: int) -> Cell:
    return format_group(loaded.report.time.collectives[at].group)


def _dtype(loaded: LoadedRun, at: int) -> Cell:
    return TextCell(loaded.report.time.collectives[at].dtype)


def _bytes(loaded: LoadedRun, at: int) -> Cell:
    entry = loaded.report.time.collectives[at]
    return make_bytes_cell(loaded, f"time.collectives[{at}].bytes", entry.kind, entry.bytes)


def _hidden(loaded: LoadedRun, at: int) -> Cell:
    return make_hidden_figure(loaded, at)


def make_hidden_figure(loaded: LoadedRun, at: int, unit: Unit = Unit.MS) -> Figure:
    """Return the hidden time of a collective: total minus exposed."""
    stem = f"time.collectives[{at}]"
    return figure(loaded.tree, unit, f"{stem}.total_ns", f"{stem}.exposed_ns", how=Aggregation.DIFFERENCE)


def find_split(loaded: LoadedRun, at: int) -> Split | None:
    """Return the split of the collective at an index of the report; None if there is none."""
    found = loaded.report.time.collectives
    if not 0 <= at < len(found):
        return None
    entry, stem = found[at], f"time.collectives[{at}]"
    least, most = (AT_LEAST, AT_MOST) if entry.bound else (EXACT, EXACT)
    return Split(
        name=printable(f"{format_kinds(found)[at]} {group_name(entry.group)}"),
        hidden=make_hidden_figure(loaded, at, Unit.NS),
        wait=make_bound_figure(loaded.tree, Unit.NS, f"{stem}.exposed_wait_ns", sign=least),
        transfer=make_bound_figure(loaded.tree, Unit.NS, f"{stem}.exposed_transfer_ns", sign=most),
    )


#: Width of a group's name in a table; the split line and the row's popup show it in full.
_GROUP_WIDTH = 16


def format_group_and_type(entry: CollectiveTime) -> str:
    """Return a collective's group and element type as text."""
    group = f"group {group_name(entry.group)}"
    return f"{group}, {entry.dtype}" if entry.dtype else group


def format_group(group: str) -> TextCell:
    """Return a group as a cell."""
    return TextCell(shorten(printable(group_name(group)), _GROUP_WIDTH))


def has_groups(time: Time) -> bool:
    """Return whether tables need a column for the group; a single group is named in the title."""
    return len({entry.group for entry in time.collectives}) > 1


def format_title(time: Time) -> str:
    """Return the title of the collectives table, with the group and type that all share."""
    if has_groups(time) or not time.collectives:
        return "collectives"
    first = time.collectives[0]
    one_type = len({entry.dtype for entry in time.collectives}) == 1
    return f"collectives, {format_group_and_type(first) if one_type else f'group {group_name(first.group)}'}"


def format_kinds(entries: Sequence[CollectiveTime]) -> tuple[str, ...]:
    """Return each entry's kind, with its element type if the kind and group occur more than once."""
    counted = Counter((entry.kind, entry.group) for entry in entries)
    return tuple(
        f"{entry.kind} {entry.dtype}" if counted[entry.kind, entry.group] > 1 else entry.kind
        for entry in entries
    )


def make_bytes_cell(loaded: LoadedRun, leaf: str, kind: CollectiveKind | str, size_bytes: int) -> Cell:
    """Return the bytes as a figure; 0 bytes of a collective that moves data are unknown."""
    return TextCell(UNKNOWN) if is_unknown_size(kind, size_bytes) else figure(loaded.tree, Unit.BYTES, leaf)
