"""Build the table of what holds the peak of a snapshot, by owner and place of allocation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.formatting import format_bytes, format_percent
from zprof.model.memory import Allocation, RankMemory
from zprof.model.memory_changes import GroupChange
from zprof.model.report import Comparison, Report
from zprof.reports.page import (
    Row,
    Section,
    Table,
    make_name_column,
    make_number_columns,
    make_section,
    make_table,
)
from zprof.reports.presenters.memory_formatting import (
    format_peak,
    format_signed_bytes,
    get_basis_mark,
    is_installed,
    largest_rank,
    tenant_name,
)
from zprof.reports.presenters.memory_reasons import describe_reason

_ALL_FOLDERS = 1_000
_MAX_GROUPS, _MAX_GROUPS_SHORT = 20, 8


def build_group_table(report: Report, *, short: bool = False) -> Table | None:
    """Build the table of the groups of the largest rank; its rows sum to the peak."""
    rank = largest_rank(report.memory.per_rank)
    if rank is None:
        return None
    groups = [entry for entry in report.memory.top if entry.rank == rank.rank]
    shown = groups[: _MAX_GROUPS_SHORT if short else _MAX_GROUPS]
    rows = [_build_row(name, entry, rank) for name, entry in zip(name_groups(shown), shown, strict=True)]
    rest = rank.peak_bytes - sum(entry.held_bytes for entry in shown)
    if rest:
        count = sum(entry.groups for entry in groups[len(shown) :])
        rows.append(Row(cells=(f"{count} more", format_bytes(rest), format_percent(rest / rank.peak_bytes))))
    rows.append(Row(cells=("allocated peak", format_peak(rank), ""), total=True))
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
    size = f"{get_basis_mark(entry.basis)}{format_bytes(entry.held_bytes)}"
    share = format_percent(entry.held_bytes / max(1, rank.peak_bytes))
    return Row(cells=(name, size, share), below=(_describe_group(entry),))


def _describe_group(entry: Allocation) -> str:
    """Describe number and size of the blocks, and where the place was called from."""
    caller = _find_caller(entry)
    return f"{describe_blocks(entry)}{f'; called from {caller}' if caller else ''}"


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
    return next((shorten_frame(frame) for frame in callers if not is_installed(frame)), "")


def shorten_frame(frame: str, folders: int = 0) -> str:
    """Return a frame with the last ``folders`` folders of its path."""
    path, colon, rest = frame.partition(":")
    return f"{'/'.join(path.split('/')[-folders - 1 :])}{colon}{rest}"


def name_groups(groups: Sequence[Allocation]) -> list[str]:
    """Return a name for each group; names that would be equal are given in more detail."""
    names = [_name_group(entry, 0, in_full=False) for entry in groups]
    for folders in (0, 2, _ALL_FOLDERS):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else _name_group(entry, folders, in_full=True)
            for name, entry in zip(names, groups, strict=True)
        ]
    return names


def _name_group(entry: Allocation, folders: int, *, in_full: bool) -> str:
    sub = f" ({entry.sub.replace('_', ' ')})" if in_full and entry.sub else ""
    return f"{tenant_name(entry.tenant)}{sub}: {name_place(entry, folders, in_full=in_full)}"


def name_place(entry: Allocation, folders: int = 0, *, in_full: bool = False) -> str:
    """Return the place of allocation of a group: its frame and operator, or why it has none."""
    if entry.groups > 1:
        return f"{entry.groups} smaller groups"
    if entry.before:
        reason = describe_reason(entry.reason)
        return f"before the history{f', {reason}' if in_full and reason else ''}"
    frame = shorten_frame(entry.where, folders)
    if not frame and not entry.operator:
        return shorten_frame(entry.stack[0], folders) if entry.stack else "no stack"
    return ", ".join(part for part in (frame, entry.operator) if part)


def build_group_change_section(comparison: Comparison | None, *, short: bool = False) -> tuple[Section, ...]:
    """Build the section of what grew between two snapshots; empty if there are no two."""
    if comparison is None or not comparison.groups:
        return ()
    lead = "What each owner holds at the peak from each place of allocation, largest growth first."
    table = build_change_table(
        "What grew",
        "live at the largest peak of each",
        ChangeTitles(a="before", b="after", change="change", only_a="gone", only_b="new"),
        comparison.groups,
        max_groups=_MAX_GROUPS_SHORT if short else _MAX_GROUPS,
    )
    return make_section("growth", "What grew", lead, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTitles:
    """Names of the two sides of a table of changes, of their difference, and of groups of one side alone."""

    a: str
    b: str
    change: str
    only_a: str
    only_b: str


def build_change_table(
    title: str,
    note: str,
    titles: ChangeTitles,
    groups: Sequence[GroupChange],
    *,
    max_groups: int,
) -> Table | None:
    """Build the table of the groups that differ, in the order given; its rows sum to both peaks."""
    shown = [group for group in groups if group.delta_bytes][:max_groups]
    entries = [_to_allocation(change) for change in shown]
    rows = [
        Row(
            cells=(name, *_format_change(change.a_bytes, change.b_bytes)),
            below=(_describe_change(change, titles),),
        )
        for name, change in zip(name_groups(entries), shown, strict=True)
    ]
    (a_bytes, b_bytes), (a_shown, b_shown) = (
        (sum(each.a_bytes for each in part), sum(each.b_bytes for each in part)) for part in (groups, shown)
    )
    rest = len(groups) - len(shown)
    if rest:
        rows.append(Row(cells=(f"{rest} more", *_format_change(a_bytes - a_shown, b_bytes - b_shown))))
    rows.append(Row(cells=("allocated peak", *_format_change(a_bytes, b_bytes)), total=True))
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


def _format_change(a_bytes: int, b_bytes: int) -> tuple[str, str, str]:
    return format_bytes(a_bytes), format_bytes(b_bytes), format_signed_bytes(b_bytes - a_bytes)


def _describe_change(change: GroupChange, titles: ChangeTitles) -> str:
    if not change.a_blocks or not change.b_blocks:
        kind = titles.only_b if change.b_blocks else titles.only_a
        return f"{kind}: {count_blocks(max(change.a_blocks, change.b_blocks))}"
    return f"{count_blocks(change.a_blocks)} {titles.a}, {change.b_blocks:,} {titles.b}"


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
    )
