"""A stuck or failed job: who waits for whom, what each rank does, and how the ranks ended."""

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from zprof.base.formatting import format_ns, format_ranges, name_ranks, printable, shorten
from zprof.model.cursor import Cursor, read
from zprof.model.endings import describe_end, describe_moment, name_place
from zprof.model.hang import (
    MAX_RANKS,
    Hang,
    HangClass,
    RankAtHang,
    RankStanding,
    RankState,
    StuckOperation,
    WaitingRanks,
    are_all_in,
    describe_last,
    describe_location,
    describe_operation,
    format_sizes,
    group_waits,
    is_stuck,
    list_standings,
    mark_cause,
    name_cause,
    name_missing_evidence,
    name_operation,
)
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.reports.layout import wrap
from zprof.reports.page import Code, Item, ItemList, Note, Section, WaitGraph, make_section
from zprof.reports.pages.wait_graph import build_wait_graph
from zprof.reports.table import (
    MAX_LINES,
    Cell,
    Column,
    Kind,
    Mark,
    Marked,
    Opens,
    Row,
    Table,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_CULPRITS, _MAX_FRAMES, _MAX_WAITS, _MAX_TEXT_ROWS = 8, 8, 6, 8
_MAX_SIZES_LENGTH, _MAX_GROUP_LENGTH = 40, 24
#: Maximum operations and stack frames of one rank in full.
_MAX_OPERATIONS, _MAX_ALL_FRAMES = 12, 40
_LABEL_WIDTH = 14
_NOBODY = "nobody: all are in it"
_NOT_KNOWN = "not known: its members are not"
_NO_CELL, _UNKNOWN = Marked("-", Mark.MUTED), Marked("unknown", Mark.MUTED)
_MARKS = {RankState.CAUSE: Mark.BAD} | dict.fromkeys(
    (RankState.LATE, RankState.NO_DUMP, RankState.NO_LINE), Mark.DOUBTFUL
)
_RANKS = Column(title="ranks", kind=Kind.TEXT, help="global ranks of the job")
_ROLE = Column(title="role", kind=Kind.TEXT, help="what the ranks of the group share")
_GROUP = Column(
    title="group", kind=Kind.TEXT, help="the process group: its ranks, and what the program calls it"
)
_OPERATION = Column(title="operation", kind=Kind.TEXT, help="its name and number in the group")
_STATE = Column(
    title="state",
    kind=Kind.TEXT,
    help="waits: in an operation that cannot finish; late: has not entered one, and has nothing "
    "pending; nothing pending: neither; no dump, no line: what it did is unknown",
)
_LOG_STATES = "entered, not entered, or past the operation in which its group is stuck; silent: unknown"
_SOURCE = Column(title="source", kind=Kind.TEXT, help="kind of line in the log that shows it, or NCCL's RAS")
#: Minimum table width on a screen to show the group name next to its role.
_WIDE = 100
_MAX_RANKS, _MAX_LINES = 8, 6


def build_hang_section(report: Report) -> tuple[Section, ...]:
    """Build the section for static outputs; empty without a flight recorder, or if nothing is stuck."""
    hang = report.hang
    if not is_stuck(hang):
        return ()
    notes = []
    if hang.operations:
        notes.append(Note(text=f"First: {describe_operation(hang.operations[0])}."))
    if wanted := name_missing_evidence(hang):
        notes.append(Note(label="WOULD TELL", text=f"{wanted}."))
    if hang.ranks_missing:
        label, unknown = ("NO LINE", "") if hang.logs else ("NO DUMP", "what they did is unknown, and ")
        missing = name_ranks(hang.ranks_missing, MAX_RANKS)
        notes.append(Note(label=label, text=f"{missing}: {unknown}nothing is said of them."))
    return make_section(
        "hang",
        "Who waits for whom",
        "The cause first; each line leads to it.",
        _draw_waits(hang),
        _list_culprits(hang),
        _build_operation_table(report, hang),
        _build_state_table(hang),
        *notes,
    )


def _draw_waits(hang: Hang) -> WaitGraph | None:
    """Draw who waits for whom; in text one line per set of ranks, with the first operation."""
    groups = group_waits(hang)
    if not groups:
        return None
    lines = []
    for group in groups[:_MAX_WAITS]:
        first, *more = group.operations
        mark = f" ◀ {mark_cause(hang, group)}" if group.causes else ""
        others = f" and {len(more)} more" if more else ""
        verb = "waits" if len(group.ranks) == 1 else "wait"
        lines += [
            f"{name_ranks(group.ranks, MAX_RANKS)} ──{verb} for──▶ "
            f"{name_ranks(group.for_ranks, MAX_RANKS)}{mark}",
            f"    in {name_operation(hang.operations[first])}{others}",
        ]
    if len(groups) > _MAX_WAITS:
        lines.append(f"and {len(groups) - _MAX_WAITS} more sets of ranks")
    return build_wait_graph(hang, groups, Code(title="waits", lines=tuple(lines)))


def _list_culprits(hang: Hang) -> ItemList | None:
    if not hang.culprits or hang.kind is HangClass.RANK_MISSING:
        return None
    items = []
    for culprit in hang.culprits[:_MAX_CULPRITS]:
        process = culprit.process
        details = {
            "process": f"{process.number} on {printable(process.host)}" if process and process.host else "",
            "entered": printable(culprit.entered_instead),
            "last entered": describe_last(culprit),
            "stack": " ← ".join(describe_location(frame) for frame in culprit.stack[:_MAX_FRAMES]),
        }
        item = Item(
            label=f"rank {culprit.rank}",
            text=describe_location(culprit.location) if culprit.location is not None else "line unknown",
            details=tuple((name, text) for name, text in details.items() if text),
        )
        items.append(item)
    return ItemList(items=tuple(items), total=len(hang.culprits), noun="ranks")


def _build_operation_table(report: Report, hang: Hang) -> Table | None:
    operations, places = hang.operations, Cursor(report).hang.operations
    has_unknown = any(each.unknown or each.unnamed for each in operations)
    columns = (
        _OPERATION,
        _GROUP,
        _ROLE,
        *make_number_columns("in it", "late", "done", *["unknown"] * has_unknown, unit="ranks"),
        Column(title="sizes", kind=Kind.NAME, wide=True),
        Column(title="entered at", kind=Kind.NAME, wide=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            printable(f"{each.operation} #{each.sequence}"),
            printable(shorten(each.description or each.group, _MAX_GROUP_LENGTH)),
            each.role,
            *(read(place[name], how=Aggregation.COUNT) for name in ("entered", "late", "finished")),
            *[Value(len(each.unknown) + each.unnamed, Unit.COUNT)] * has_unknown,
            printable(shorten(format_sizes(each.sizes, each.dtypes), _MAX_SIZES_LENGTH)),
            describe_location(each.location) if each.location is not None else "",
        )
        for each, place in zip(operations, places, strict=True)
    ]
    return make_table(
        "Operations that cannot finish",
        columns,
        rows,
        max_text_rows=_MAX_TEXT_ROWS,
        total=len(operations),
        noun="operations",
    )


def _build_state_table(hang: Hang) -> Table | None:
    """Build the table of what logs and RAS show of each rank; dumps show more."""
    if not hang.logs:
        return None
    #: Ranks of the job, and numbers of others in their groups.
    rows: dict[tuple[str, ...], tuple[set[int], set[int]]] = {}
    descriptions = {each.group: each.description for each in reversed(hang.operations)}
    for each in hang.ranks:
        standing = " ".join(part for part in (each.operation, _format_sequence(each.sequence)) if part)
        group = shorten(descriptions.get(each.group) or each.group, _MAX_GROUP_LENGTH)
        key = (each.state.value.replace("_", " "), standing, group, each.basis)
        ranks, members = rows.setdefault(key, (set(), set()))
        if each.rank is not None:
            ranks.add(each.rank)
        elif each.group_rank is not None:
            members.add(each.group_rank)
    cells = [
        (shorten(_name_members(ranks, members), _MAX_SIZES_LENGTH), *map(printable, key))
        for key, (ranks, members) in rows.items()
    ]
    return make_table(
        "What is known of each rank",
        (_RANKS, replace(_STATE, help=_LOG_STATES), _OPERATION, _GROUP, _SOURCE),
        cells,
        max_text_rows=_MAX_TEXT_ROWS,
        total=len(cells),
        noun="rows",
    )


def _name_members(ranks: Collection[int], members: Collection[int]) -> str:
    parts = [format_ranges(ranks)] if ranks else []
    return ", ".join([*parts, f"{format_ranges(members)} of its group"] if members else parts)


def _format_sequence(sequence: int | None) -> str:
    return "" if sequence is None else f"#{sequence}"


def _find_stuck(report: Report) -> Hang | None:
    """Return what a stuck job waits for; None without a stuck job or a flight recorder."""
    return report.hang if is_stuck(report.hang) else None


def _list_waits(hang: Hang) -> Sequence[WaitingRanks]:
    """Return who waits for whom; if nobody does, the operations that all ranks are in and none leaves."""
    return group_waits(hang) or [
        WaitingRanks(ranks=operation.entered, for_ranks=(), operations=(number,))
        for number, operation in enumerate(hang.operations)
    ]


def build_waits_table(report: Report) -> Table:
    """Build the table of who waits for whom, causes first; empty if the job is not stuck."""
    hang = _find_stuck(report)
    waits = _list_waits(hang)[:MAX_LINES] if hang else ()
    return Table(
        name="waits",
        title="who waits for whom, the cause first",
        columns=(
            _RANKS,
            Column(title="wait for", kind=Kind.TEXT, help="ranks that have not entered or not finished it"),
            Column(title="", kind=Kind.TEXT, help="cause: nothing holds these ranks up"),
            Column(
                title="in", kind=Kind.TEXT, help="the first operation that they wait in, +1: and one more"
            ),
            _ROLE,
            replace(_GROUP, from_width=_WIDE, takes_rest=True),
        ),
        rows=tuple(_make_wait_line(hang, number, wait) for number, wait in enumerate(waits)) if hang else (),
        help="One row for each set of ranks that wait for the same ranks. Ranks that wait for the cause come "
        "first; each other row leads to it.",
        note="enter: sizes, all ranks of the group, where it was entered" if waits else "nobody waits",
    )


def _make_wait_line(hang: Hang, number: int, wait: WaitingRanks) -> Row:
    operation, others = hang.operations[wait.operations[0]], len(wait.operations) - 1
    name = f"{operation.operation} #{operation.sequence}"
    return Row(
        key=str(number),
        cells=(
            _number_ranks(wait.ranks),
            _number_ranks(wait.for_ranks) or (_NOBODY if are_all_in(hang, wait) else _NOT_KNOWN),
            Marked(mark_cause(hang, wait), Mark.BAD),
            f"{name} +{others}" if others else name,
            operation.role,
            operation.description or operation.group,
        ),
        opens=Opens.WAIT,
        target=number,
    )


def _number_ranks(ranks: Sequence[int]) -> str:
    return name_ranks(ranks, MAX_RANKS).removeprefix("ranks ").removeprefix("rank ") if ranks else ""


def build_standings_table(report: Report) -> Table:
    """Build the table of what each rank of a stuck job does; empty if the job is not stuck."""
    hang = _find_stuck(report)
    seen = {each.rank for each in hang.ranks if each.rank is not None} if hang else set()
    standings = list_standings(hang, seen.union(report.run.ranks_loaded)) if hang else ()
    is_cut = len(standings) > MAX_LINES
    return Table(
        name="standings",
        title="ranks, the cause first",
        columns=(
            Column(title="rank", kind=Kind.TEXT),
            _STATE,
            Column(
                title="stands in",
                kind=Kind.TEXT,
                help="the operation that it waits in, or the last it entered",
            ),
            replace(_GROUP, takes_rest=True),
            Column(title="line", kind=Kind.TEXT, help="line of the program", takes_rest=True),
        ),
        rows=[
            Row(
                key=str(each.rank),
                cells=(
                    f"r{each.rank}",
                    Marked(each.state.value, _MARKS.get(each.state, Mark.PLAIN)),
                    *_describe_standing(hang, each),
                ),
                opens=Opens.STANDING,
                target=each.rank,
            )
            for each in standings[:MAX_LINES]
            if hang
        ],
        help="Press enter on a rank for all operations that it waits in and, for the cause, its last "
        "operation and its stack.",
        note=f"{MAX_LINES} of {len(standings)} ranks" if is_cut else "enter: its operations, stack",
    )


def _describe_standing(hang: Hang, standing: RankStanding) -> tuple[Cell, Cell, Cell]:
    """Return the operation in which a rank is stuck, its group, and the program line."""
    culprit = _find_culprit(hang, standing.rank)
    if standing.state is RankState.CAUSE and culprit is not None:
        location = culprit.location or culprit.last_location
        name = " ".join(
            part for part in (culprit.last_operation, _format_sequence(culprit.last_sequence)) if part
        )
        return (
            f"after {name}" if name else _NO_CELL,
            culprit.last_group if culprit.last_group else _NO_CELL,
            describe_location(location) if location is not None else _UNKNOWN,
        )
    if standing.state is RankState.WAITS and standing.operation is not None:
        operation = hang.operations[standing.operation]
        return (
            f"{operation.operation} #{operation.sequence}",
            operation.description or operation.group,
            describe_location(operation.location) if operation.location is not None else _UNKNOWN,
        )
    if standing.state in (RankState.LATE, RankState.NOTHING_PENDING):
        return _NO_CELL, _NO_CELL, _UNKNOWN
    return _UNKNOWN, _UNKNOWN, _UNKNOWN


def _find_culprit(hang: Hang, rank: int) -> RankAtHang | None:
    """Return the entry of a rank that blocks the others, or None."""
    return next((culprit for culprit in hang.culprits if culprit.rank == rank), None)


def describe_wait(report: Report, number: int) -> tuple[str, Callable[[int], str]]:
    """Return the title and text of a wait row: its operations, and the ranks they wait for."""
    hang = _find_stuck(report)
    assert hang is not None
    wait = _list_waits(hang)[number]

    def layout_text(columns: int) -> str:
        lines = []
        for operation in wait.operations[:_MAX_OPERATIONS]:
            lines += [*_format_operation(hang.operations[operation], columns), ""]
        if len(wait.operations) > _MAX_OPERATIONS:
            lines += [f"and {len(wait.operations) - _MAX_OPERATIONS} more operations", ""]
        for rank in wait.for_ranks[:MAX_RANKS]:
            lines += [*_format_rank(hang, rank, columns), ""]
        if len(wait.for_ranks) > MAX_RANKS:
            lines.append(f"and {len(wait.for_ranks) - MAX_RANKS} more ranks: screen 5 has all")
        return "\n".join(lines).rstrip()

    waiting = name_ranks(wait.ranks, MAX_RANKS)
    if not wait.for_ranks:
        where = (
            "in an operation that none leaves"
            if are_all_in(hang, wait)
            else "for whom they wait is not known"
        )
        return f"{waiting}: {where}", layout_text
    mark = f" ({mark_cause(hang, wait)})" if wait.causes else ""
    verb = "waits" if len(wait.ranks) == 1 else "wait"
    return f"{waiting} {verb} for {name_ranks(wait.for_ranks, MAX_RANKS)}{mark}", layout_text


def describe_standing(report: Report, rank: int) -> tuple[str, Callable[[int], str]]:
    """Return the title and text of a rank: what it does, and all operations it waits in or is late for."""
    hang = _find_stuck(report)
    assert hang is not None
    state = list_standings(hang, (rank,))
    title = next(f"rank {rank}: {each.state.value}" for each in state if each.rank == rank)

    def layout_text(columns: int) -> str:
        own = [each for each in hang.operations if rank in (*each.entered, *each.late, *each.unknown)]
        lines = [*_format_rank(hang, rank, columns), ""]
        for operation in own[:_MAX_OPERATIONS]:
            lines += [*_format_operation(operation, columns), ""]
        if len(own) > _MAX_OPERATIONS:
            lines.append(f"and {len(own) - _MAX_OPERATIONS} more operations")
        return "\n".join(lines).rstrip()

    return title, layout_text


def _format_operation(operation: StuckOperation, columns: int) -> Iterator[str]:
    yield printable(f"{operation.operation} #{operation.sequence}")
    is_named = operation.description not in ("", operation.group)
    name = f"{operation.description} (process group {operation.group})" if is_named else operation.group
    members = format_ranges(operation.ranks)
    if operation.size is None:
        members = f"{members}; others are not known" if members else "unknown"
    elif operation.unnamed:
        members += f" and {operation.unnamed} without a name"
    facts = {
        "sizes": operation.sizes or "unknown",
        "dtypes": operation.dtypes or "unknown",
        "group": name,
        "role": operation.role or "unknown",
        "its ranks": members,
        "in it": format_ranges(operation.entered),
        "late": format_ranges(operation.late) or "none",
        "left it": format_ranges(operation.finished),
        "unknown of": format_ranges(operation.unknown),
        "entered at": describe_location(operation.location) if operation.location else "unknown: no frames",
    }
    for label, fact in facts.items():
        if fact:
            yield from _format_fact(label, fact, columns)


def _format_rank(hang: Hang, rank: int, columns: int) -> Iterator[str]:
    """Format what a rank does: the last operation and stack of the cause, or whom others wait for."""
    culprit = _find_culprit(hang, rank)
    if rank in hang.ranks_missing:
        left = "has no line in the logs" if hang.logs else "left no dump"
        yield f"rank {rank} {left}: what it did is unknown"
        return
    if culprit is None:
        yield f"rank {rank}"
        waits = [wait for wait in _list_waits(hang) if rank in wait.ranks]
        for wait in waits[:_MAX_OPERATIONS]:
            mark = f" ({mark_cause(hang, wait)})" if wait.causes else ""
            others = name_ranks(wait.for_ranks, MAX_RANKS) if wait.for_ranks else "nobody"
            what = f"{others}{mark}, in {name_operation(hang.operations[wait.operations[0]])}"
            yield from _format_fact("waits for", what, columns)
        if not waits:
            yield from _format_fact("waits for", "nobody that is known", columns)
        return
    yield f"rank {rank}, the {name_cause(hang)}"
    if culprit.entered_instead:
        yield from _format_fact("entered", f"{culprit.entered_instead} instead", columns)
    yield from _format_fact("last entered", describe_last(culprit) or "nothing that is known", columns)
    if culprit.location is not None:
        yield from _format_fact("stands at", describe_location(culprit.location), columns)
    frames = [describe_location(frame) for frame in culprit.stack[:_MAX_ALL_FRAMES]]
    if frames:
        yield "  stack, innermost first"
        yield from (f"    {frame}" for frame in frames)
    elif culprit.location is None:
        is_watched = hang.stall_ns is not None
        why = "the rank could not save it" if is_watched else "a dump has none; zprof record --watch saves it"
        yield from _format_fact("stack", f"unknown: {why}", columns)


def _format_fact(label: str, fact: str, columns: int) -> list[str]:
    return wrap(printable(fact), first=f"  {label:<{_LABEL_WIDTH}}", width=columns)


def build_ending_section(report: Report) -> tuple[Section, ...]:
    """Build the section on how ranks ended; empty if no rank failed or the cause is unknown."""
    ends = report.endings
    if not ends:
        return ()
    columns = (
        *make_number_columns("rank", "ended after"),
        make_text_column("how"),
        Column(title="when", kind=Kind.NAME, wide=True),
        Column(title="in", kind=Kind.NAME, wide=True),
    )
    table = make_table(
        "How the ranks ended",
        columns,
        [
            (
                str(end.rank),
                "" if end.after_ns is None else format_ns(end.after_ns),
                describe_end(end),
                describe_moment(end).removesuffix(", "),
                name_place(end),
            )
            for end in ends[:_MAX_RANKS]
        ],
        total=len(ends),
        noun="ranks",
    )
    first = ends[0]
    words = Code(
        title=f"last words of rank {first.rank}",
        lines=tuple(printable(line) for line in first.last_words[-_MAX_LINES:]),
    )
    lead = "The first one first; times since the recording started."
    return make_section("endings", "How the ranks ended", lead, table, words if words.lines else None)
