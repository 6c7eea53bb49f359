"""Collectives by kind, group and element type: exposed and hidden, waiting and moving, bandwidth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zprof.model.printable import printable
from zprof.model.time import Time
from zprof.reports.presenters.run_words import group_name
from zprof.reports.presenters.time_figures import per
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT, bound_figure
from zprof.tui.pages.communication_names import bytes_cell, group_word, has_groups, kind_names, title_of
from zprof.tui.pages.made_lines import MadeLines, most_of
from zprof.tui.session import Loaded
from zprof.tui.tables import MOST_LINES, Cell, Column, Line, Opens, Table, Word

_MS = "in ms, "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A column, and the cell of the collective at a place of the report."""

    column: Column
    cell: Callable[[Loaded, int], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One kind of collective: which part of its time is hidden, exposed waiting, exposed transfer."""

    name: str
    hidden: Figure
    wait: Figure
    transfer: Figure


def collectives_table(loaded: Loaded) -> Table:
    """One row a kind, group and element type, the most exposed first."""
    time = loaded.report.time
    fields = _fields(time)
    return Table(
        name="collectives",
        title=title_of(time),
        columns=tuple(field.column for field in fields),
        lines=MadeLines(
            min(MOST_LINES, len(time.collectives)),
            lambda at: Line(
                key=str(at),
                cells=tuple(field.cell(loaded, at) for field in fields),
                opens=Opens.COLLECTIVE,
                target=at,
            ),
        ),
        help=_HELP,
        note=_note(loaded),
    )


_HELP = (
    "What each kind of collective costs: sums of a step, mean over the loaded ranks of its group. total = "
    "hidden + exposed, and total = wait + transfer, hidden or not: the line below has what of both is "
    "exposed. A finding's times and counts are without the first collective of each group in the window, "
    "which carries the start of the profiler. With several groups the rows do not add up to the step: each "
    "is a mean of its own ranks; the lines at the bottom have the sum that the ledger agrees with. enter on "
    "a name: its worst instances."
)


def _note(loaded: Loaded) -> str:
    time = loaded.report.time
    if not time.collectives:
        reasons = [gap.reason for gap in loaded.report.gaps if gap.what == "collectives"]
        return reasons[0] if reasons else "none ran in these steps"
    bound = "≥ ≤ ranks are missing  " if any(entry.bound for entry in time.collectives) else ""
    most = most_of(MOST_LINES, len(time.collectives), "most exposed")
    return f"{most}{bound}hidden + exposed = wait + transfer, ms {per(time)}"


def _fields(time: Time) -> Sequence[_Field]:
    """Of many groups they need a column, and the sizes and bandwidths then need a wider terminal."""
    many, names = has_groups(time), kind_names(time.collectives)
    types = len({entry.dtype for entry in time.collectives}) > 1
    shown = [
        _Field(column=Column(title="collective", says="its kind"), cell=lambda loaded, at: Word(names[at]))
    ]
    if many:
        shown.append(_Field(column=Column(title="group", says="its ranks"), cell=_group))
    if types:
        shown.append(_Field(column=Column(title="type", says="of an element", from_width=100), cell=_dtype))
    shown += [
        _number("n", "collectives a step, of one rank", "count", Unit.COUNT),
        _Field(
            column=Column(
                title="bytes", says="of the full tensors", numeric=True, from_width=100 if many else 0
            ),
            cell=_bytes,
        ),
        _number("total", _MS + "sum of their durations", "total_ns", Unit.MS, 110 if many else 90),
        _Field(column=Column(title="hidden", says=_MS + "total less exposed", numeric=True), cell=_hidden),
        _number("exposed", _MS + "this rank computes nothing, and waits for them", "exposed_ns", Unit.MS),
        _number("wait", _MS + "before the last rank came, hidden or not", "wait_ns", Unit.MS, sign=AT_LEAST),
        _number(
            "transfer", _MS + "after the last rank came, hidden or not", "transfer_ns", Unit.MS, sign=AT_MOST
        ),
        _number("bus", "bus bandwidth", "busbw_bytes_per_s", Unit.BYTES_PER_S, 110 if many else 0),
        *_wide_fields(many),
    ]
    return shown


def _wide_fields(many: bool) -> Sequence[_Field]:
    more = 20 if many else 0
    return [
        _number("algorithm", "bytes / time", "algbw_bytes_per_s", Unit.BYTES_PER_S, 110 + more),
        _number("launch delay", "median, from launch to start", "launch_delay_ns", Unit.NS, 118 + more),
        _number("exposed wait", _MS + "part of it", "exposed_wait_ns", Unit.MS, 150, sign=AT_LEAST),
        _number("exposed transfer", _MS + "the rest", "exposed_transfer_ns", Unit.MS, 150, sign=AT_MOST),
        _number("dependency", "of the launch delay, what it had to wait for", "dependency_ns", Unit.NS, 170),
        _number("tail", "median, from a rank's end to the last end", "tail_ns", Unit.NS, 170 + more),
        _number("intrinsic", "median, last start to first end", "intrinsic_ns", Unit.NS, 185 + more),
    ]  # fmt: skip


def _number(
    title: str, says: str, leaf: str, unit: Unit, from_width: int = 0, *, sign: str = EXACT
) -> _Field:
    def cell(loaded: Loaded, at: int) -> Cell:
        bound = sign if loaded.report.time.collectives[at].bound else EXACT
        return bound_figure(loaded.tree, unit, f"time.collectives[{at}].{leaf}", sign=bound)

    return _Field(column=Column(title=title, says=says, numeric=True, from_width=from_width), cell=cell)


def _group(loaded: Loaded, at: int) -> Cell:
    return group_word(loaded.report.time.collectives[at].group)


def _dtype(loaded: Loaded, at: int) -> Cell:
    return Word(loaded.report.time.collectives[at].dtype)


def _bytes(loaded: Loaded, at: int) -> Cell:
    entry = loaded.report.time.collectives[at]
    return bytes_cell(loaded, f"time.collectives[{at}].bytes", entry.kind, entry.bytes)


def _hidden(loaded: Loaded, at: int) -> Cell:
    return hidden_figure(loaded, at)


def hidden_figure(loaded: Loaded, at: int, unit: Unit = Unit.MS) -> Figure:
    """What of a collective nobody was held up by."""
    stem = f"time.collectives[{at}]"
    return figure(loaded.tree, unit, f"{stem}.total_ns", f"{stem}.exposed_ns", how=How.DIFFERENCE)


def split_of(loaded: Loaded, at: int) -> Split | None:
    """The split of the collective at a place of the report; None where there is none."""
    found = loaded.report.time.collectives
    if not 0 <= at < len(found):
        return None
    entry, stem = found[at], f"time.collectives[{at}]"
    least, most = (AT_LEAST, AT_MOST) if entry.bound else (EXACT, EXACT)
    return Split(
        name=printable(f"{kind_names(found)[at]} {group_name(entry.group)}"),
        hidden=hidden_figure(loaded, at, Unit.NS),
        wait=bound_figure(loaded.tree, Unit.NS, f"{stem}.exposed_wait_ns", sign=least),
        transfer=bound_figure(loaded.tree, Unit.NS, f"{stem}.exposed_transfer_ns", sign=most),
    )
