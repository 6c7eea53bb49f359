"""Build the table of what holds the peak of a snapshot, by owner and place of allocation."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from zprof.model.formatting import format_bytes, printable, shorten
from zprof.model.leaves import take_value
from zprof.model.memory import Allocation, RankMemory
from zprof.model.memory_changes import GroupChange
from zprof.model.quantities import Unit, Value
from zprof.model.report import Comparison, Report
from zprof.reports.page import Note, Section, make_section
from zprof.reports.presenters.memory_formatting import (
    is_installed,
    largest_rank,
    shorten_frame,
    take_owned_bytes,
    tenant_name,
)
from zprof.reports.presenters.memory_reasons import describe_reason
from zprof.reports.table import Row, Table, make_name_column, make_number_columns, make_table

_ALL_FOLDERS = 1_000
_MAX_GROUPS, _MAX_GROUPS_SHORT = 20, 8
#: Smaller changes, relative to the largest one, are merged.
_MIN_CHANGE_RATIO = 0.01
#: Kinds that say no more than the tenant does.
_OBVIOUS_KINDS = frozenset({"", "weight", "grad", "state", "saved"})
#: Stands for the unknown number of groups that were merged; any number above 1.
_MERGED_GROUPS = 2
#: What a group is called that only the first or only the second peak has, if both are in the same phase.
_ONE_SIDED = ("gone", "new")
#: Maximum length of the name of an operator or of a kind.
_MAX_NAME = 60


def build_group_table(report: Report, *, short: bool = False) -> Table | None:
    """Build the table of the groups of the largest rank; its rows sum to the peak."""
    rank = largest_rank(report.memory.per_rank)
    if rank is None:
        return None
    groups = [entry for entry in report.memory.top if entry.rank == rank.rank]
    shown = groups[: _MAX_GROUPS_SHORT if short else _MAX_GROUPS]
    names = name_groups(groups)[: len(shown)]
    rows = [_build_row(name, entry, rank) for name, entry in zip(names, shown, strict=True)]
    rest = rank.peak_bytes - sum(entry.held_bytes for entry in shown)
    if rest:
        count = sum(entry.groups for entry in groups[len(shown) :])
        share = Value(rest / rank.peak_bytes, Unit.RATIO)
        rows.append(Row(cells=(f"{count} more", Value(rest, Unit.BYTES), share)))
    rows.append(Row(cells=("allocated peak", take_value(rank, "peak_bytes"), ""), total=True))
    return make_table(
        "Largest groups",
        (
            make_name_column("owner and place of allocation"),
            *make_number_columns("size", unit="bytes"),
            *make_number_columns("share", unit="%"),
        ),
        rows,
        note=f"live at the peak of rank {rank.rank}",
        max_text_rows=len(rows),
        below="blocks",
    )


def _build_row(name: str, entry: Allocation, rank: RankMemory) -> Row:
    share = Value(entry.held_bytes / max(1, rank.peak_bytes), Unit.RATIO)
    return Row(cells=(name, take_owned_bytes(entry, "held_bytes"), share), below=(_describe_group(entry),))


def _describe_group(entry: Allocation) -> str:
    """Describe number and size of the blocks, and where the place was called from."""
    caller = _find_caller(entry)
    merged = f"{entry.groups:,} groups, " if entry.groups > 1 else ""
    return f"{merged}{describe_blocks(entry)}{f'; called from {caller}' if caller else ''}"


def describe_blocks(entry: Allocation) -> str:
    """Describe the number of blocks and the range of their sizes."""
    smallest, largest = format_bytes(entry.smallest_bytes or entry.bytes), format_bytes(entry.bytes)
    if entry.count == 1:
        return count_blocks(1)
    sizes = f"of {largest} each" if smallest == largest else f"of {smallest} to {largest}"
    return f"{count_blocks(entry.count)} {sizes}"


def count_blocks(count: int) -> str:
    """Format a number of blocks."""
    return f"{count:,} block{'' if count == 1 else 's'}"


def _find_caller(entry: Allocation) -> str:
    """Return the frame of the user's code that called the place of an allocation."""
    if entry.where not in entry.stack:
        return ""
    callers = entry.stack[entry.stack.index(entry.where) + 1 :]
    return next((shorten_frame(frame, 0) for frame in callers if not is_installed(frame)), "")


def name_groups(groups: Sequence[Allocation]) -> list[str]:
    """Return a name for each group; names that would be equal are given in more detail.

    Pass all groups of a peak, not only those that are shown: a group then has one name on every page.
    """
    names = [_name_group(entry, 0, in_full=False) for entry in groups]
    for folders in (0, 2, _ALL_FOLDERS):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else _name_group(entry, folders, in_full=True)
            for name, entry in zip(names, groups, strict=True)
        ]
    return names


def _name_group(entry: Allocation, folders: int, *, in_full: bool) -> str:
    is_named = entry.sub and (in_full or entry.sub not in _OBVIOUS_KINDS)
    sub = f" ({shorten(printable(entry.sub.replace('_', ' ')), _MAX_NAME)})" if is_named else ""
    return f"{tenant_name(entry.tenant)}{sub}: {name_place(entry, folders, in_full=in_full)}"


def name_place(entry: Allocation, folders: int = 0, *, in_full: bool = False) -> str:
    """Return the place of allocation of a group: its frame and operator, or why it has none."""
    if entry.groups > 1:
        return "smaller groups"
    if entry.before:
        reason = describe_reason(entry.reason)
        return f"before the history{f', {reason}' if in_full and reason else ''}"
    frame = shorten_frame(entry.where, folders)
    if not frame and not entry.operator:
        return shorten_frame(entry.stack[0], folders) if entry.stack else "no stack"
    operator = shorten(printable(entry.operator), _MAX_NAME)
    return ", ".join(part for part in (frame, operator) if part)


class ChangeTitles(Struct, frozen=True, kw_only=True):
    """Names of the two sides of a table of changes, of their difference, and of groups of one side alone."""

    a: str
    b: str
    change: str
    only_a: str
    only_b: str


class PeakNames(Struct, frozen=True, kw_only=True):
    """Names of the two sides of a comparison of peaks: of the columns, and of the peaks in a sentence."""

    a: str
    b: str
    a_peak: str
    b_peak: str


BASELINE_PEAKS = PeakNames(a="before", b="after", a_peak="the baseline's peak", b_peak="this peak")
RUN_PEAKS = PeakNames(a="A", b="B", a_peak="A's peak", b_peak="B's peak")


def build_group_change_section(
    comparison: Comparison | None, names: PeakNames = BASELINE_PEAKS, *, short: bool = False
) -> tuple[Section, ...]:
    """Build the section of what changed between two snapshots; empty if there are no two."""
    if comparison is None or not comparison.groups:
        return ()
    a_phase, b_phase = comparison.group_phases
    in_other_phase = bool(a_phase and b_phase and a_phase != b_phase)
    only_a, only_b = (f"only at {names.a_peak}", f"only at {names.b_peak}") if in_other_phase else _ONE_SIDED
    table = build_change_table(
        "What changed",
        "live at the largest peak of each",
        ChangeTitles(a=names.a, b=names.b, change="change", only_a=only_a, only_b=only_b),
        comparison.groups,
        max_groups=_MAX_GROUPS_SHORT if short else _MAX_GROUPS,
    )
    lead = "What each owner holds at the peak from each place of allocation, largest change first."
    text = f"{names.a_peak} is in the {a_phase}, {names.b_peak} in the {b_phase}"
    note = Note(text=f"{text[0].upper()}{text[1:]}: groups differ for that reason too.")
    return make_section("growth", "What changed", lead, table, note if in_other_phase else None)


def build_change_table(
    title: str,
    note: str,
    titles: ChangeTitles,
    groups: Sequence[GroupChange],
    *,
    max_groups: int,
) -> Table | None:
    """Build the table of the largest changes, in the order given; its rows sum to both peaks."""
    entries = [_to_allocation(change) for change in groups]
    least = _MIN_CHANGE_RATIO * max((abs(change.delta_bytes) for change in groups), default=0)
    named = [
        (name, change)
        for name, change in zip(name_groups(entries), groups, strict=True)
        if abs(change.delta_bytes) >= max(1, least)
    ][:max_groups]
    rows = [
        Row(
            cells=(name, *_make_change_cells(change.a_bytes, change.b_bytes)),
            below=(_describe_change(change, titles),),
        )
        for name, change in named
    ]
    shown = [change for _, change in named]
    (a_bytes, b_bytes), (a_shown, b_shown) = (
        (sum(each.a_bytes for each in part), sum(each.b_bytes for each in part)) for part in (groups, shown)
    )
    rest = len(groups) - len(shown)
    if rest:
        changed = sum(1 for change in groups if change.delta_bytes) > len(shown)
        name = f"{rest} with {'a smaller' if changed else 'no'} change"
        rows.append(Row(cells=(name, *_make_change_cells(a_bytes - a_shown, b_bytes - b_shown))))
    rows.append(Row(cells=("allocated peak", *_make_change_cells(a_bytes, b_bytes)), total=True))
    return make_table(
        title,
        (
            make_name_column("owner and place of allocation"),
            *make_number_columns(titles.a, titles.b, titles.change, unit="bytes"),
        ),
        rows,
        note=note,
        max_text_rows=len(rows),
        below="blocks",
    )


def _make_change_cells(a_bytes: int, b_bytes: int) -> tuple[Value, ...]:
    change = Value(b_bytes - a_bytes, Unit.BYTES, signed=True)
    return Value(a_bytes, Unit.BYTES), Value(b_bytes, Unit.BYTES), change


def _describe_change(change: GroupChange, titles: ChangeTitles) -> str:
    if not change.a_blocks or not change.b_blocks:
        kind = titles.only_b if change.b_blocks else titles.only_a
        return f"{kind}: {count_blocks(max(change.a_blocks, change.b_blocks))}"
    return f"{titles.a}: {count_blocks(change.a_blocks)}, {titles.b}: {change.b_blocks:,}"


def _to_allocation(change: GroupChange) -> Allocation:
    """Return the group of a change, to be named as the groups of one snapshot are."""
    return Allocation(
        rank=0,
        bytes=change.b_bytes,
        tenant=change.tenant,
        sub=change.sub,
        module="",
        operator=change.operator,
        where=change.where,
        before=change.before_history,
        groups=_MERGED_GROUPS if change.merged else 1,
    )
