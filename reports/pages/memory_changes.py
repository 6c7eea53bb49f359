"""Compare two peaks: of a run and its baseline, and of the largest and the smallest rank."""

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec import Struct

from zprof.base.formatting import format_bytes, format_percent
from zprof.model.cursor import Cursor, every, get, read
from zprof.model.memory import Allocation, GroupChange, Memory, RankSpread
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.reports.page import Note, Section, make_section
from zprof.reports.pages.memory_allocations import count_blocks, name_groups
from zprof.reports.pages.names import format_ranks
from zprof.reports.pages.tenants import PEAK, tenant_name
from zprof.reports.table import Row, Table, make_name_column, make_number_columns, make_table

_MAX_GROUPS, _MAX_GROUPS_SHORT = 20, 8
_MAX_RANK_GROUPS, _MAX_RANK_GROUPS_SHORT = 12, 4
#: Smaller changes, relative to the largest change, are merged.
_MIN_CHANGE_RATIO = 0.01
#: Peaks that differ by less count as equal.
_MIN_SPREAD_RATIO = 0.03
#: Stands for the unknown number of groups that were merged; any number above 1.
_MERGED_GROUPS = 2
#: Labels of groups in only the first or only the second peak, if both peaks are in the same phase.
_ONE_SIDED = ("gone", "new")


class ChangeTitles(Struct, frozen=True, kw_only=True):
    """Titles in a change table: the two sides, their difference, and groups on one side only."""

    a: str
    b: str
    change: str
    only_a: str
    only_b: str


class PeakNames(Struct, frozen=True, kw_only=True):
    """Names of two compared peaks: as columns, and in sentences."""

    a: str
    b: str
    a_peak: str
    b_peak: str


BASELINE_PEAKS = PeakNames(a="before", b="after", a_peak="the baseline's peak", b_peak="this peak")
RUN_PEAKS = PeakNames(a="A", b="B", a_peak="A's peak", b_peak="B's peak")


def build_group_change_section(
    comparison: Cursor, names: PeakNames = BASELINE_PEAKS, *, short: bool = False
) -> tuple[Section, ...]:
    """Build the section on changes between two snapshots; empty without two snapshots."""
    if get(comparison) is None or not get(comparison).groups:
        return ()
    a_phase, b_phase = get(comparison).group_phases
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
    title: str, note: str, titles: ChangeTitles, groups: Cursor, *, max_groups: int
) -> Table | None:
    """Build the table of the largest changes, in the given order; its rows sum to both peaks."""
    changes: Sequence[GroupChange] = get(groups)
    least = _MIN_CHANGE_RATIO * max((abs(change.delta_bytes) for change in changes), default=0)
    names = name_groups([_to_allocation(change) for change in changes])
    large = [at for at, change in enumerate(changes) if abs(change.delta_bytes) >= max(1, least)]
    shown = large[:max_groups]
    rows = [
        Row(
            cells=(names[at], *_read_change([groups[at]])),
            below=(_describe_change(changes[at], titles),),
        )
        for at in shown
    ]
    rest = [groups[at] for at in range(len(changes)) if at not in set(shown)]
    if rest:
        has_changes = any(get(group).delta_bytes for group in rest)
        name = f"{len(rest)} with {'a smaller' if has_changes else 'no'} change"
        rows.append(Row(cells=(name, *_read_change(rest))))
    rows.append(Row(cells=(PEAK, *_read_change([every(groups)])), total=True))
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


def _read_change(groups: Sequence[Cursor]) -> tuple[Value, Value, Value]:
    """Return the total bytes of groups at each peak, and their change."""
    a_bytes = read(*(group.a_bytes for group in groups), how=Aggregation.SUM)
    b_bytes = read(*(group.b_bytes for group in groups), how=Aggregation.SUM)
    if len(groups) == 1:
        change = read(groups[0].b_bytes, groups[0].a_bytes, how=Aggregation.DIFFERENCE, signed=True)
        return a_bytes, b_bytes, change
    return a_bytes, b_bytes, Value((b_bytes.number or 0) - (a_bytes.number or 0), Unit.BYTES, signed=True)


def _describe_change(change: GroupChange, titles: ChangeTitles) -> str:
    if not change.a_blocks or not change.b_blocks:
        kind = titles.only_b if change.b_blocks else titles.only_a
        return f"{kind}: {count_blocks(max(change.a_blocks, change.b_blocks))}"
    return f"{titles.a}: {count_blocks(change.a_blocks)}, {titles.b}: {change.b_blocks:,}"


def _to_allocation(change: GroupChange) -> Allocation:
    """Return the group of a change in the form used to name groups of one snapshot."""
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


def build_rank_spread_section(report: Report, *, short: bool = False) -> tuple[Section, ...]:
    """Build the section on differences between ranks with snapshots; empty if their peaks are about equal."""
    spread = report.memory.spread
    if spread is None or not spread.groups:
        return ()
    peaks = [rank.peak_bytes for rank in report.memory.per_rank]
    if max(peaks) - min(peaks) < _MIN_SPREAD_RATIO * max(peaks):
        return ()
    largest, smallest = f"rank {spread.largest_rank}", f"rank {spread.smallest_rank}"
    table = build_change_table(
        "Where the ranks differ",
        "live at the peak of the smallest and the largest rank",
        ChangeTitles(
            a=smallest,
            b=largest,
            change="difference",
            only_a=f"{smallest} alone",
            only_b=f"{largest} alone",
        ),
        Cursor(report).memory.spread.groups,
        max_groups=_MAX_RANK_GROUPS_SHORT if short else _MAX_RANK_GROUPS,
    )
    note = Note(text=describe_spread(report.memory, spread))
    lead = "What the rank with the largest peak holds beyond the one with the smallest."
    return make_section("spread", "Differences between ranks", lead, table, note)


def describe_spread(memory: Memory, spread: RankSpread) -> str:
    """Describe the difference between the largest and smallest peaks, and the outlier ranks."""
    largest = max(rank.peak_bytes for rank in memory.per_rank)
    share = format_percent(spread.difference_bytes / max(1, largest - spread.difference_bytes))
    sentence = (
        f"rank {spread.largest_rank} holds {format_bytes(spread.difference_bytes)} ({share}) more than rank "
        f"{spread.smallest_rank}, mostly {tenant_name(spread.tenant)}"
    )
    # With more than two ranks, name the ranks far from the median peak; nothing if no rank or every rank is
    # far.
    ranks = memory.per_rank
    middle = median(rank.peak_bytes for rank in ranks)
    above = [rank.rank for rank in ranks if rank.peak_bytes > (1 + _MIN_SPREAD_RATIO) * middle]
    below = [rank.rank for rank in ranks if rank.peak_bytes < (1 - _MIN_SPREAD_RATIO) * middle]
    if len(ranks) < 3 or not above + below:
        return f"{sentence}."
    sides = ", ".join(
        f"{name}: rank{'s' if len(side) > 1 else ''} {format_ranks(side)}"
        for name, side in (("above", above), ("below", below))
        if side
    )
    limit = f"{format_percent(_MIN_SPREAD_RATIO)} off the median of {len(ranks):,} ranks"
    return f"{sentence} ({limit}, {sides})."


def list_spread_blocks(report: Report) -> Iterator[Table | Note | None]:
    """Yield the difference between ranks by tenant, and a sentence about it; nothing for a single rank."""
    spread = report.memory.spread
    if spread is None:
        return
    if not spread.difference_bytes:
        yield Note(text="All ranks have the same peak.")
        return
    deltas = Cursor(report).memory.spread.delta_bytes
    rows = [
        (tenant_name(name), read(deltas[name], signed=True))
        for name, delta in spread.delta_bytes.items()
        if delta
    ]
    columns = (make_name_column("tenant"), *make_number_columns("difference", unit="bytes"))
    yield make_table("Difference between ranks", columns, rows, note="largest peak minus smallest")
    yield Note(text=describe_spread(report.memory, spread))
