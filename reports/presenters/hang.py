"""Build the section on a hang: who waits for whom, who is at fault, and what cannot finish."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import name_ranks, printable, shorten
from zprof.model.hang import Hang, HangClass, RankAtHang, StuckOperation, is_stuck
from zprof.model.hang_text import (
    MAX_RANKS,
    describe_last,
    describe_location,
    describe_missing_evidence,
    describe_operation,
    format_sizes,
    name_operation,
)
from zprof.model.hang_waits import group_waits, mark_cause
from zprof.model.report import Report
from zprof.reports.page import Block, Code, Item, ItemList, Note, Section, make_section
from zprof.reports.table import Column, Kind, make_number_columns, make_table, make_text_column

_MAX_CULPRITS, _MAX_FRAMES, _MAX_WAITS, _MAX_TEXT_ROWS = 8, 8, 6, 8
_MAX_SIZES_LENGTH, _MAX_GROUP_LENGTH = 40, 24
_ARROW = "──waits for──▶"


def build_hang_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if the run has no flight recorder, or nothing is stuck."""
    hang = report.hang
    if not is_stuck(hang):
        return ()
    return make_section(
        "hang",
        "Who waits for whom",
        "The cause first; each line leads to it.",
        _draw_waits(hang),
        _list_culprits(hang),
        _build_operation_table(hang.operations),
        _build_state_table(hang),
        *_list_notes(hang),
    )


def _draw_waits(hang: Hang) -> Code | None:
    """Draw who waits for whom: one line for each set of ranks, with the first operation that they wait in."""
    groups = group_waits(hang)
    if not groups:
        return None
    lines = []
    for group in groups[:_MAX_WAITS]:
        first, *more = group.operations
        mark = f" ◀ {mark_cause(hang, group)}" if group.causes else ""
        others = f" and {len(more)} more" if more else ""
        lines += [
            f"{name_ranks(group.ranks, MAX_RANKS)} {_ARROW} {name_ranks(group.for_ranks, MAX_RANKS)}{mark}",
            f"    in {name_operation(hang.operations[first])}{others}",
        ]
    if len(groups) > _MAX_WAITS:
        lines.append(f"and {len(groups) - _MAX_WAITS} more sets of ranks")
    return Code(title="waits", lines=tuple(lines))


def _list_culprits(hang: Hang) -> ItemList | None:
    if not hang.culprits or hang.kind is HangClass.RANK_MISSING:
        return None
    return ItemList(
        items=tuple(_describe_culprit(culprit) for culprit in hang.culprits[:_MAX_CULPRITS]),
        total=len(hang.culprits),
        noun="ranks",
    )


def _describe_culprit(culprit: RankAtHang) -> Item:
    return Item(
        label=f"rank {culprit.rank}",
        text=describe_location(culprit.location) if culprit.location is not None else "line unknown",
        details=tuple(_list_details(culprit)),
    )


def _list_details(culprit: RankAtHang) -> Iterator[tuple[str, str]]:
    if culprit.entered_instead:
        yield "entered", printable(culprit.entered_instead)
    last = describe_last(culprit)
    if last:
        yield "last entered", last
    if culprit.stack:
        frames = [describe_location(frame) for frame in culprit.stack[:_MAX_FRAMES]]
        yield "stack", " ← ".join(frames)


def _build_operation_table(operations: Sequence[StuckOperation]) -> Block | None:
    has_unknown = any(each.unknown or each.unnamed for each in operations)
    columns = (
        make_text_column("operation"),
        make_text_column("group"),
        make_text_column("role"),
        *make_number_columns("in it", "late", "done", *["unknown"] * has_unknown, unit="ranks"),
        Column(title="sizes", kind=Kind.NAME, wide=True),
        Column(title="entered at", kind=Kind.NAME, wide=True),
    )
    rows = [
        (
            printable(f"{each.operation} #{each.sequence}"),
            printable(shorten(each.description or each.group, _MAX_GROUP_LENGTH)),
            each.role,
            str(len(each.entered)),
            str(len(each.late)),
            str(len(each.finished)),
            *[str(len(each.unknown) + each.unnamed)] * has_unknown,
            printable(shorten(format_sizes(each.sizes, each.dtypes), _MAX_SIZES_LENGTH)),
            describe_location(each.location) if each.location is not None else "",
        )
        for each in operations
    ]
    return make_table(
        "Operations that cannot finish",
        columns,
        rows,
        max_text_rows=_MAX_TEXT_ROWS,
        total=len(operations),
        noun="operations",
    )


def _build_state_table(hang: Hang) -> Block | None:
    """Build the table of what the lines of each rank prove; dumps have more to say than this."""
    if not hang.logs:
        return None
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in hang.ranks:
        standing = " ".join(part for part in (each.operation, _format_sequence(each.sequence)) if part)
        key = (each.state.value.replace("_", " "), standing, _name_group(hang, each.group), each.basis)
        named = f"{each.group_rank} of its group" if each.rank is None else str(each.rank)
        rows.setdefault(key, []).append(named)
    columns = [make_text_column(title) for title in ("ranks", "state", "operation", "group", "by its")]
    cells = [
        (shorten(", ".join(ranks), _MAX_SIZES_LENGTH), *map(printable, key)) for key, ranks in rows.items()
    ]
    return make_table(
        "What the lines of each rank show",
        tuple(columns),
        cells,
        max_text_rows=_MAX_TEXT_ROWS,
        total=len(cells),
        noun="rows",
    )


def _format_sequence(sequence: int | None) -> str:
    return "" if sequence is None else f"#{sequence}"


def _name_group(hang: Hang, name: str) -> str:
    description = next((each.description for each in hang.operations if each.group == name), "")
    return shorten(description or name, _MAX_GROUP_LENGTH)


def _list_notes(hang: Hang) -> Iterator[Note]:
    if hang.operations:
        yield Note(text=f"First: {describe_operation(hang.operations[0])}.")
    if wanted := describe_missing_evidence(hang):
        yield Note(label="WOULD TELL", text=f"{wanted}.")
    if hang.ranks_missing and hang.logs:
        missing = name_ranks(hang.ranks_missing, MAX_RANKS)
        yield Note(label="NO LINE", text=f"{missing}: nothing is said of them.")
    elif hang.ranks_missing:
        missing = name_ranks(hang.ranks_missing, MAX_RANKS)
        yield Note(label="NO DUMP", text=f"{missing}: what they did is unknown, and nothing is said of them.")
