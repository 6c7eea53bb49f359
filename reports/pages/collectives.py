"""Collectives: the table by kind, group and type, and its breakdowns: sizes, units, link fits.

All outputs draw these tables. Rows are sorted by exposed time, largest first.

A field is a column plus the function that makes its cell for one report entry. The table of a report list
consists of fields, so one line adds a column with title, unit, help, path and bound.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_psi
from zprof.model.collectives import is_unknown_size
from zprof.model.cursor import Cursor, every, get, get_path, read
from zprof.model.gaps import GapKind
from zprof.model.metrics import METRICS
from zprof.model.metrics.communication import EXCLUDES_FIRST
from zprof.model.quantities import UNKNOWN, Aggregation, Unit, Value, parse_path, strip_unit
from zprof.model.report import Report, Volume
from zprof.model.time import Alignment, CollectiveTime, Time, UnitTime, mean_over_ranks
from zprof.model.training import ENGINE_TITLES, Engine
from zprof.reports.page import Note, Section, make_section
from zprof.reports.pages.names import group_name
from zprof.reports.table import (
    MAX_LINES,
    Cell,
    Column,
    Kind,
    LazyRows,
    Mark,
    Marked,
    Opens,
    Row,
    Table,
    format_cell,
)

_UNIT_WORDS: Mapping[Unit, str] = {
    Unit.NS: "time",
    Unit.BYTES: "bytes",
    Unit.RATIO: "%",
    Unit.COUNT: "count",
    Unit.BYTES_PER_S: "bytes/s",
    Unit.FACTOR: "times",
}
_COLLECTIVES, _MESSAGES, _UNITS, _FITS = (
    f"time.{name}[]." for name in ("collectives", "messages", "units", "fits")
)
#: Screen columns for the name of a group.
_GROUP_WIDTH = 18
_MAX_TEXT_ROWS, _MAX_TEXT_FITS = 12, 8
_MAX_MOVED, _MAX_NAMED = 4, 6
_SQUARE, _MAX_SQUARES = "■", 8
#: Maximum difference between a sum and the ledger, relative to the larger value, that counts as agreement.
_TOLERANCE_RATIO = 0.01


class Field(Struct, frozen=True):
    """A column, and the function that makes its cell for one entry."""

    column: Column
    cell: Callable[[Cursor], Cell]


def metric_field(
    path: str,
    *,
    in_ms: bool = True,
    wide: bool = False,
    from_width: int = 0,
    cell: Callable[[Cursor], Cell] | None = None,
) -> Field:
    """Return the field of a catalogue number, with its name, unit, and the first sentence of its help.

    Args:
        path: Path in the catalogue, such as ``time.collectives[].busbw_bytes_per_s``.
        in_ms: Show times in ms, as noted in the header.
        wide: Omit the column in text.
        from_width: Minimum table width to show the column on a screen.
        cell: Function that makes the cells; default: the number itself.
    """
    metric, name = METRICS[path], parse_path(path).name
    is_in_ms = in_ms and metric.unit is Unit.NS
    column = Column(
        title=strip_unit(name).removesuffix(" ratio"),
        unit="ms" if is_in_ms else _UNIT_WORDS[metric.unit],
        help=metric.help.partition(". ")[0].removesuffix("."),
        wide=wide,
        from_width=from_width,
    )
    return Field(column, cell or (lambda place: read(place[name], in_ms=is_in_ms)))


def name_field(
    name: str,
    *,
    title: str = "",
    help: str = "",
    lifted: bool = False,
    show: Callable[[str], str] = str,
) -> Field:
    """Return the field of a name from a recording; ``show`` formats it."""
    column = Column(
        title=title or name,
        kind=Kind.NAME,
        help=help,
        lifted=lifted,
        takes_rest=True,
    )
    return Field(column, lambda place: show(get(place[name])))


def make_rows(
    fields: Sequence[Field], places: Sequence[Cursor], opens: Opens = Opens.NOTHING
) -> Sequence[Row]:
    """Return a row for each entry of a report list, built when first drawn."""

    def make_row(number: int) -> Row:
        place = places[number]
        index = get_path(place).indices[-1]
        cells = tuple(field.cell(place) for field in fields)
        return Row(key=str(index), cells=cells, opens=opens, target=index)

    return LazyRows(len(places), make_row)


def build_collective_section(report: Report) -> tuple[Section, ...]:
    """Build the collectives section; empty if no collective was recorded (the gaps give the reason)."""
    alignment = report.time.alignment
    sentences = [_describe_volume(report)] if report.volume is not None else []
    if alignment is not None and len(report.time.per_rank) > 1:
        sentences += _describe_alignment(alignment)
    return make_section(
        "communication",
        "Communication",
        "Collectives by kind and process group.",
        build_collective_table(report),
        *(Note(text=line) for line in sentences),
    )


def _describe_volume(report: Report) -> str:
    """Compare the bytes of a rank with the ZeRO formula of the stage and with the engine's scheme."""
    volume = report.volume
    if volume is None:
        return ""
    scheme = ""
    if volume.engine_bytes is not None:
        name = report.run.engine
        title = ENGINE_TITLES[Engine(name)] if name in set(Engine) else name
        scheme = f", {title} with these settings {_format_expected(volume, volume.engine_bytes)}"
    formula = f"{_format_expected(volume, volume.expected_bytes)} ({format_percent(volume.ratio)})"
    return (
        f"Bytes {report.time.basis}: {format_bytes(volume.seen_bytes)}; "
        f"the ZeRO formula for this stage gives {formula}{scheme}."
    )


def _format_expected(volume: Volume, expected_bytes: int) -> str:
    """Return bytes, and the multiple of all parameters if the engine differs from the formula."""
    if volume.engine_bytes is None or not volume.parameter_bytes:
        return format_bytes(expected_bytes)
    return f"{format_bytes(expected_bytes)} = {format_psi(expected_bytes / volume.parameter_bytes)}"


def _describe_alignment(alignment: Alignment) -> tuple[str, ...]:
    """Describe the clock alignment, and the handling of mismatched collectives."""
    if len(alignment.offsets_ns) < 2:
        aligned = "Clocks not aligned: the ranks have no suitable collective in common"
    else:
        aligned = f"Clocks aligned by {alignment.method} to {format_ns(alignment.uncertainty_ns)}"
    unmatched = f", {alignment.unmatched:,} not matched" if alignment.unmatched else ""
    lines = [f"{aligned}; {alignment.matched:,} collectives matched across ranks{unmatched}."]
    if alignment.shifts:
        shifts = sorted(alignment.shifts.items())[:_MAX_MOVED]
        moved = ", ".join(f"rank {rank} by {shift:+d}" for rank, shift in shifts)
        lines.append(f"Collective sequences were shifted to match: {moved}.")
    if alignment.excluded:
        names = ", ".join(str(rank) for rank in alignment.excluded[:_MAX_NAMED])
        lines.append(f"Ranks left out because their collectives could not be matched: {names}.")
    return tuple(lines)


def build_collective_table(report: Report) -> Table:
    """Build one row per kind, group and element type."""
    time = report.time
    several, wide = int(_has_groups(time)), 100 if _has_groups(time) or _has_types(time) else 0
    fields = (
        name_field("kind", help="kind of collective"),
        Field(
            name_field(
                "group", help="the process group: its ranks, and what the program calls it", lifted=True
            ).column,
            lambda place: _name_group_and_hosts(get(place)),
        ),
        name_field("dtype", title="type", help="element type", lifted=True),
        metric_field(f"{_COLLECTIVES}count"),
        metric_field(f"{_COLLECTIVES}bytes", from_width=wide, cell=make_bytes_cell),
        metric_field(f"{_COLLECTIVES}total_ns", from_width=90 + 20 * several),
        Field(_HIDDEN, lambda place: make_hidden_value(place, in_ms=True)),
        *(metric_field(f"{_COLLECTIVES}{name}") for name in ("exposed_ns", "wait_ns", "transfer_ns")),
        metric_field(f"{_COLLECTIVES}busbw_bytes_per_s", from_width=wide and wide + 10),
        metric_field(f"{_COLLECTIVES}algbw_bytes_per_s", wide=True, from_width=110 + 20 * several),
        metric_field(f"{_COLLECTIVES}launch_delay_ns", in_ms=False, wide=True, from_width=118 + 20 * several),
        *(
            metric_field(f"{_COLLECTIVES}{name}", in_ms=in_ms, wide=True, from_width=from_width)
            for name, in_ms, from_width in (
                ("exposed_wait_ns", True, 150),
                ("exposed_transfer_ns", True, 150),
                ("dependency_ns", False, 170),
                ("tail_ns", False, 170 + 20 * several),
                ("intrinsic_ns", False, 185 + 20 * several),
            )
        ),
    )
    entries = list(Cursor(report).time.collectives)
    return Table(
        name="collectives",
        title="Collectives",
        columns=tuple(field.column for field in fields),
        rows=make_rows(fields, entries[:MAX_LINES], Opens.COLLECTIVE),
        shared="" if several or _has_types(time) else _name_group_and_type(time.collectives),
        unit="ms",
        note=f"{time.basis}, mean of the ranks of the group" if entries else _explain_none(report),
        notes=(
            *([_BOUND_NOTE] if any(entry.bound for entry in time.collectives) else []),
            *([_GROUP_NOTE] if several else []),
        ),
        help=_HELP.format(basis=time.basis),
        total=len(entries),
        noun="rows, most exposed time first",
    )


_HIDDEN = Column(title="hidden", unit="ms", help="The part of the total that is not exposed", wide=True)
_HELP = (
    "Time of each kind of collective: sum {basis}, averaged over the loaded ranks of its group. total = "
    "hidden + exposed, and total = wait + transfer. wait and transfer include hidden time; the line below "
    f"the table shows their exposed parts. {EXCLUDES_FIRST} Press enter on a name to list its most exposed "
    "instances."
)
_BOUND_NOTE = "Waits with ≥ and transfers with ≤ are bounds: not all ranks of the group could be compared."
_GROUP_NOTE = "Each row is per rank of its group. Groups of other ranks run in parallel: rows do not add up."


def _explain_none(report: Report) -> str:
    reasons = [gap.reason for gap in report.gaps if gap.kind is GapKind.NO_COLLECTIVES]
    return reasons[0] if reasons else "none ran in these steps"


def _has_groups(time: Time) -> bool:
    return len({entry.group for entry in time.collectives}) > 1


def _has_types(time: Time) -> bool:
    return len({entry.dtype for entry in time.collectives}) > 1


def _name_group_and_type(entries: Sequence[CollectiveTime]) -> str:
    """Return the group and element type of the first entry."""
    if not entries:
        return ""
    group, dtype = f"group {_name_group_and_hosts(entries[0])}", entries[0].dtype
    return f"{group}, type {dtype}" if dtype else group


def _name_group_and_hosts(entry: CollectiveTime) -> str:
    """Return the name of a group, and the number of its hosts if there are several."""
    hosts = f" on {entry.hosts} hosts" if entry.hosts is not None and entry.hosts > 1 else ""
    return f"{group_name(entry.group)}{hosts}"


def name_collective(entry: CollectiveTime) -> str:
    """Return the kind of a collective with its group and element type."""
    return f"{entry.kind}, {_name_group_and_type([entry])}"


def make_hidden_value(place: Cursor, *, in_ms: bool) -> Value:
    """Return the hidden time of a collective: total minus exposed."""
    return read(place.total_ns, place.exposed_ns, how=Aggregation.DIFFERENCE, in_ms=in_ms)


def make_bytes_cell(place: Cursor) -> Value:
    """Return the bytes of an entry; 0 bytes mean unknown for a collective that moves data."""
    size = read(place.bytes)
    return replace(size, number=None) if is_unknown_size(get(place.kind), get(place.bytes)) else size


def _sort_places(places: Cursor, entries: Sequence[object]) -> list[Cursor]:
    """Return the cursors of these list entries, in order."""
    index = {id(entry): at for at, entry in enumerate(get(places))}
    return [places[index[id(entry)]] for entry in entries]


def build_message_table(report: Report) -> Table:
    """Build one row per kind, group and size range (powers of four), in order of size."""
    time = report.time
    sized = {(entry.kind, entry.group) for entry in time.collectives if entry.bytes > 0}
    unsized = {(entry.kind, entry.group) for entry in time.collectives} - sized
    known = [entry for entry in time.messages if (entry.kind, entry.group) not in unsized]
    by_exposed = sorted(known, key=lambda each: (-each.exposed_ns, -each.count, each.kind, each.group))
    shown = sorted(by_exposed[:MAX_LINES], key=lambda each: (each.kind, each.group, each.at_least_bytes))
    largest, width = max((entry.count for entry in shown), default=0.0), _get_group_width(time)
    fields = (
        name_field("kind"),
        name_field("group", lifted=True, show=group_name),
        metric_field(f"{_MESSAGES}at_least_bytes"),
        metric_field(f"{_MESSAGES}below_bytes", from_width=69 + width),
        metric_field(f"{_MESSAGES}count"),
        Field(
            Column(
                title="",
                kind=Kind.TEXT,
                help="number of messages, to scale",
                wide=True,
                from_width=62 + width,
            ),
            lambda place: _SQUARE * _count_squares(get(place.count), largest),
        ),
        metric_field(f"{_MESSAGES}exposed_ns"),
        metric_field(f"{_MESSAGES}busbw_bytes_per_s"),
    )
    return Table(
        name="sizes",
        title="Message sizes",
        columns=tuple(field.column for field in fields),
        rows=make_rows(fields, _sort_places(Cursor(report).time.messages, shown)),
        shared="" if width else _name_group(time),
        unit="ms",
        note=time.basis if known else "sizes unknown",
        max_text_rows=_MAX_TEXT_ROWS,
        order=tuple(sorted(range(len(shown)), key=lambda at: (-shown[at].exposed_ns, -shown[at].count))),
        help="Number of messages per size range (powers of four), their exposed time, and the bus bandwidth "
        "that they reached. Small messages are latency-bound; see the link fit.",
        total=len(known),
        noun="rows, most exposed time first",
    )


def _count_squares(count: float, largest: float) -> int:
    return max(1, round(count * _MAX_SQUARES / largest)) if count > 0 else 0


def _get_group_width(time: Time) -> int:
    """Return the screen columns for group names; 0 if all rows share a group."""
    return _GROUP_WIDTH if _has_groups(time) else 0


def _name_group(time: Time) -> str:
    return f"group {group_name(time.collectives[0].group)}" if time.collectives else ""


def build_unit_table(report: Report) -> Table:
    """Build one row per wrapped module and kind of collective, most exposed time first."""
    time, width = report.time, _get_group_width(report.time)
    shown = sort_units(time)[:MAX_LINES]
    fields = (
        name_field("unit", help="the wrapped module"),
        name_field("kind"),
        name_field("group", lifted=True, show=group_name),
        metric_field(f"{_UNITS}count", from_width=74 if width else 0),
        metric_field(f"{_UNITS}bytes", from_width=72 + width, cell=make_bytes_cell),
        metric_field(f"{_UNITS}exposed_wait_ns"),
        metric_field(f"{_UNITS}exposed_transfer_ns"),
    )
    return Table(
        name="units",
        title="Units",
        columns=tuple(field.column for field in fields),
        rows=make_rows(fields, _sort_places(Cursor(report).time.units, shown)),
        shared="" if width else _name_group(time),
        unit="ms",
        note=f"{time.basis}, mean of the ranks of the group"
        if shown
        else "the modules of the collectives are unknown",
        max_text_rows=_MAX_TEXT_ROWS,
        help="Exposed time by the wrapped module (unit) that a collective belongs to.",
        total=len(time.units),
        noun="units, most exposed time first",
    )


def sort_units(time: Time) -> list[UnitTime]:
    """Return the units, most exposed time first."""
    return sorted(
        time.units,
        key=lambda each: (-(each.exposed_wait_ns + each.exposed_transfer_ns), each.unit, each.kind),
    )


def build_fit_table(report: Report) -> Table:
    """Build the table of fitted latency and bandwidth of links with several message sizes."""
    time, width = report.time, _get_group_width(report.time)
    shown = sorted(time.fits, key=lambda fit: (-fit.messages, fit.kind, fit.group))[:MAX_LINES]
    fields = (
        name_field("kind"),
        name_field("group", lifted=True, show=group_name),
        metric_field(f"{_FITS}latency_ns", in_ms=False),
        metric_field(f"{_FITS}busbw_bytes_per_s"),
        metric_field(f"{_FITS}algbw_bytes_per_s", from_width=69 + width),
        metric_field(f"{_FITS}latency_share_ratio"),
        metric_field(f"{_FITS}residual_ratio", from_width=60),
        metric_field(f"{_FITS}messages", from_width=79 + width),
        metric_field(f"{_FITS}sizes", wide=True, from_width=86 + width),
    )
    has_sizes = any(entry.bytes > 0 for entry in time.collectives)
    reason = "too few messages, or all of the same size" if has_sizes else "sizes unknown"
    return Table(
        name="fits",
        title="Link fit",
        columns=tuple(field.column for field in fields),
        rows=make_rows(fields, _sort_places(Cursor(report).time.fits, shown)),
        shared="" if width else _name_group(time),
        note="time = latency + bytes / bandwidth, as observed by the ranks" if shown else reason,
        max_text_rows=_MAX_TEXT_FITS,
        help="Linear fit of message time (last start to first end) against message size. Latency and "
        "bandwidth cannot be separated if all messages have the same size. The latency is the one observed "
        "by the ranks: it includes scheduling and thread wake-up delays and may be many times the latency of "
        "the link.",
        total=len(time.fits),
        noun="fits, most messages first",
    )


def build_check_table(report: Report) -> Table:
    """Build four rows: bytes against the formula, two exposed terms against the ledger, clocks."""
    rows = [_make_volume_cells(report), *_list_exposed_cells(report), _make_clock_cells(report)]
    columns = (
        Column(title="check", kind=Kind.TEXT),
        Column(title="measured"),
        Column(title="reference", kind=Kind.TEXT),
        Column(title="expected"),
        Column(title="result"),
        Column(title="meaning", kind=Kind.TEXT, takes_rest=True),
    )
    return Table(
        name="checks",
        title="",
        columns=columns,
        rows=tuple(
            Row(
                key=format_cell(cells[0]),
                cells=cells,
                opens=Opens.GAP if UNKNOWN in cells else Opens.NOTHING,
            )
            for cells in rows
        ),
        help=f"Bytes {report.time.basis}, compared with the ZeRO formula for the stage. Exposed time of all "
        "collectives, averaged over the ranks, compared with the terms of the ledger: they differ by "
        "collectives that cross the edges of the window, because a collective is counted in the step that "
        "launched it. Uncertainty of the clock alignment between ranks, from collectives matched across "
        "ranks.",
    )


def _make_volume_cells(report: Report) -> tuple[Cell, ...]:
    reasons = "; ".join(gap.reason for gap in report.gaps if gap.kind is GapKind.VOLUME)
    title, volume = f"bytes {report.time.basis}", Cursor(report).volume
    if report.volume is None:
        if report.run.world_size == 1 and not reasons:
            return (title, "none", "formula", "", "", Marked("single rank", Mark.MUTED))
        return (title, UNKNOWN, "formula", "", "", Marked(reasons, Mark.MUTED))
    meaning = Marked(reasons or "relative to the ZeRO formula for this stage", Mark.MUTED)
    return (
        title,
        read(volume.seen_bytes),
        "formula",
        read(volume.expected_bytes),
        read(volume.ratio),
        meaning,
    )


def _list_exposed_cells(report: Report) -> list[tuple[Cell, ...]]:
    sums, ranks = Cursor(report).time.exposed_in_collectives, every(Cursor(report).time.per_rank)
    return [
        (
            f"exposed {term}",
            read(sums[f"{term}_ns"]),
            "ledger",
            read(ranks[f"exposed_{term}_ns"], how=Aggregation.MEAN),
            "",
            Marked(_describe_agreement(report, term), Mark.MUTED),
        )
        for term in ("transfer", "wait")
    ]


def _describe_agreement(report: Report, term: str) -> str:
    sums, ranks = report.time.exposed_in_collectives, report.time.per_rank
    if sums is None or not ranks:
        return "no collective was recorded"
    ledger_ns, total_ns = mean_over_ranks(ranks, f"exposed_{term}_ns"), getattr(sums, f"{term}_ns")
    noise_ns = max(rank.noise_floor_ns for rank in ranks)
    if abs(total_ns - ledger_ns) > max(_TOLERANCE_RATIO * max(total_ns, ledger_ns), noise_ns):
        return "differ: collectives that cross the window edges"
    return "sum, averaged over ranks" if _has_groups(report.time) else "sum of all kinds"


def _make_clock_cells(report: Report) -> tuple[Cell, ...]:
    alignment, place = report.time.alignment, Cursor(report).time.alignment
    if alignment is None or len(alignment.offsets_ns) < 2:
        several = len(report.run.ranks_loaded) > 1
        reason = "the ranks share no collective" if several else "only one rank is loaded"
        reason = "single rank" if report.run.world_size == 1 else reason
        return ("clocks", "not aligned", "", "", "", Marked(reason, Mark.MUTED))
    shifted = f"order shifted on {len(alignment.shifts)} ranks" if alignment.shifts else ""
    excluded = f"{len(alignment.excluded)} ranks excluded" if alignment.excluded else ""
    method, unmatched = ", ".join(filter(None, (alignment.method, shifted, excluded))), read(place.unmatched)
    last = f"unmatched; {method}" if unmatched.number else method
    return (
        "clock error",
        read(place.uncertainty_ns),
        "matched",
        read(place.matched),
        unmatched if unmatched.number else "",
        Marked(last, Mark.MUTED),
    )
