"""Build the table of collectives by kind, group and element type, and the time split of one of them."""

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from zprof.model.collectives import CollectiveKind, is_unknown_size
from zprof.model.formatting import printable, shorten
from zprof.model.gaps import GapKind
from zprof.model.leaves import read_value
from zprof.model.quantities import UNKNOWN, Aggregation, Value
from zprof.model.time import CollectiveTime, Time
from zprof.reports.presenters.run_formatting import group_name
from zprof.reports.table import Cell, Column, Kind, Opens, Row, Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import MAX_LINES, LazyRows, format_truncation

_MS = "in ms, "


class _Field(Struct, frozen=True, kw_only=True):
    """A column, and the function that makes its cell for the collective at an index of the report."""

    column: Column
    cell: Callable[[LoadedRun, int], Cell]


class Split(Struct, frozen=True, kw_only=True):
    """Time of one kind of collective, split into hidden, exposed wait and exposed transfer."""

    name: str
    hidden: Value
    wait: Value
    transfer: Value


def build_collectives_table(loaded: LoadedRun) -> Table:
    """Build one row per kind, group and element type, the most exposed first."""
    time = loaded.report.time
    fields = _list_fields(time)
    return Table(
        name="collectives",
        title=format_title(time),
        columns=tuple(field.column for field in fields),
        rows=LazyRows(
            min(MAX_LINES, len(time.collectives)),
            lambda index: Row(
                key=str(index),
                cells=tuple(field.cell(loaded, index) for field in fields),
                opens=Opens.COLLECTIVE,
                target=index,
            ),
        ),
        help=_HELP.format(basis=time.basis),
        note=_format_note(loaded),
    )


_HELP = (
    "Time of each kind of collective: sum {basis}, averaged over the loaded ranks of its group. total = "
    "hidden + exposed, and total = wait + transfer. wait and transfer include hidden time; the line below "
    "the table shows their exposed parts. Findings exclude the first collective of each group in the "
    "window, because it includes profiler start-up. With several groups, the rows do not add up to the "
    "step, because each is averaged over the ranks of its own group; the checks at the bottom show the sum "
    "to compare with the ledger. Press enter on a name to list its most exposed instances."
)


def _format_note(loaded: LoadedRun) -> str:
    time = loaded.report.time
    if not time.collectives:
        reasons = [gap.reason for gap in loaded.report.gaps if gap.kind is GapKind.NO_COLLECTIVES]
        return reasons[0] if reasons else "none ran in these steps"
    bounds = "≥ ≤ ranks missing  " if any(entry.bound for entry in time.collectives) else ""
    truncation = format_truncation(MAX_LINES, len(time.collectives), "most exposed")
    return f"{truncation}{bounds}hidden + exposed = wait + transfer, ms {time.basis}"


def _list_fields(time: Time) -> Sequence[_Field]:
    """List the fields; with several groups, sizes and bandwidths need a wider terminal."""
    several_groups, names = has_groups(time), format_kinds(time.collectives)
    several_types = len({entry.dtype for entry in time.collectives}) > 1
    fields = [
        _Field(
            column=Column(title="collective", kind=Kind.TEXT, help="kind of collective"),
            cell=lambda loaded, index: names[index],
        )
    ]
    if several_groups:
        fields.append(
            _Field(
                column=Column(title="group", kind=Kind.TEXT, help="ranks of the group"), cell=_make_group_cell
            )
        )
    if several_types:
        fields.append(
            _Field(
                column=Column(title="type", kind=Kind.TEXT, help="element type", from_width=100),
                cell=_make_dtype_cell,
            )
        )
    fields += [
        _make_number_field("n", f"collectives {time.basis} and rank", "count"),
        _Field(
            column=Column(
                title="bytes",
                help="size of the full (unsharded) tensors",
                from_width=100 if several_groups else 0,
            ),
            cell=_make_size_cell,
        ),
        _make_number_field("total", _MS + "sum of the durations", "total_ns", 110 if several_groups else 90),
        _Field(
            column=Column(
                title="hidden",
                help=_MS + "total minus exposed",
            ),
            cell=_make_hidden_cell,
        ),
        _make_number_field("exposed", _MS + "the rank is blocked and does not compute", "exposed_ns"),
        _make_number_field("wait", _MS + "before the last rank arrived, hidden or exposed", "wait_ns"),
        _make_number_field(
            "transfer",
            _MS + "after the last rank arrived, hidden or exposed",
            "transfer_ns",
        ),
        _make_number_field("bus", "bus bandwidth", "busbw_bytes_per_s", 110 if several_groups else 0),
        *_list_wide_fields(several_groups),
    ]
    return fields


def _list_wide_fields(several_groups: bool) -> Sequence[_Field]:
    extra = 20 if several_groups else 0
    return [
        _make_number_field(
            "algorithm",
            "algorithm bandwidth: bytes / time",
            "algbw_bytes_per_s",
            110 + extra,
        ),
        _make_number_field("launch delay", "median, from launch to start", "launch_delay_ns", 118 + extra),
        _make_number_field("exposed wait", _MS + "exposed part of the wait", "exposed_wait_ns", 150),
        _make_number_field(
            "exposed transfer",
            _MS + "exposed part of the transfer",
            "exposed_transfer_ns",
            150,
        ),
        _make_number_field(
            "dependency",
            "part of the launch delay spent waiting for other work",
            "dependency_ns",
            170,
        ),
        _make_number_field("tail", "median, from a rank's end to the last end", "tail_ns", 170 + extra),
        _make_number_field("intrinsic", "median, last start to first end", "intrinsic_ns", 185 + extra),
    ]


def _make_number_field(title: str, says: str, leaf: str, from_width: int = 0) -> _Field:
    def cell(loaded: LoadedRun, index: int) -> Cell:
        return read_value(loaded.report, f"time.collectives[{index}].{leaf}", in_ms=says.startswith(_MS))

    return _Field(column=Column(title=title, help=says, from_width=from_width), cell=cell)


def _make_group_cell(loaded: LoadedRun, index: int) -> Cell:
    return format_group(loaded.report.time.collectives[index].group)


def _make_dtype_cell(loaded: LoadedRun, index: int) -> Cell:
    return loaded.report.time.collectives[index].dtype


def _make_size_cell(loaded: LoadedRun, index: int) -> Cell:
    entry = loaded.report.time.collectives[index]
    return make_bytes_cell(loaded, f"time.collectives[{index}].bytes", entry.kind, entry.bytes)


def _make_hidden_cell(loaded: LoadedRun, index: int) -> Cell:
    return _make_hidden_value(loaded, index, in_ms=True)


def _make_hidden_value(loaded: LoadedRun, index: int, *, in_ms: bool) -> Value:
    """Return the hidden time of a collective: total minus exposed."""
    stem = f"time.collectives[{index}]"
    return read_value(
        loaded.report, f"{stem}.total_ns", f"{stem}.exposed_ns", how=Aggregation.DIFFERENCE, in_ms=in_ms
    )


def find_split(loaded: LoadedRun, index: int) -> Split | None:
    """Return the split of the collective at an index of the report; None if there is none."""
    collectives = loaded.report.time.collectives
    if not 0 <= index < len(collectives):
        return None
    entry, stem = collectives[index], f"time.collectives[{index}]"
    return Split(
        name=printable(f"{format_kinds(collectives)[index]} {group_name(entry.group)}"),
        hidden=_make_hidden_value(loaded, index, in_ms=False),
        wait=read_value(loaded.report, f"{stem}.exposed_wait_ns"),
        transfer=read_value(loaded.report, f"{stem}.exposed_transfer_ns"),
    )


#: Width of a group's name in a table; the split line and the row's popup show it in full.
_GROUP_WIDTH = 16


def format_group_and_type(entry: CollectiveTime) -> str:
    """Format a collective's group and element type."""
    group = f"group {group_name(entry.group)}"
    return f"{group}, {entry.dtype}" if entry.dtype else group


def format_group(group: str) -> str:
    """Return a group's name, shortened to the width of a cell."""
    return shorten(printable(group_name(group)), _GROUP_WIDTH)


def has_groups(time: Time) -> bool:
    """Return True if tables need a group column; a single group is part of the title."""
    return len({entry.group for entry in time.collectives}) > 1


def format_title(time: Time) -> str:
    """Format the title of the collectives table, with the group and type that all share."""
    if has_groups(time) or not time.collectives:
        return "collectives"
    first = time.collectives[0]
    is_one_type = len({entry.dtype for entry in time.collectives}) == 1
    group = format_group_and_type(first) if is_one_type else f"group {group_name(first.group)}"
    return f"collectives, {group}"


def format_kinds(entries: Sequence[CollectiveTime]) -> tuple[str, ...]:
    """Format each entry's kind, with its element type if the kind and group occur more than once."""
    counted = Counter((entry.kind, entry.group) for entry in entries)
    return tuple(
        f"{entry.kind} {entry.dtype}" if counted[entry.kind, entry.group] > 1 else entry.kind
        for entry in entries
    )


def make_bytes_cell(loaded: LoadedRun, leaf: str, kind: CollectiveKind | str, size_bytes: int) -> Cell:
    """Return the bytes as a figure; 0 bytes for a collective that moves data means unknown."""
    return UNKNOWN if is_unknown_size(kind, size_bytes) else read_value(loaded.report, leaf)
