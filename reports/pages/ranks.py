"""Ranks: late ranks and the ranks that waited for them, ledgers, and the critical path.

A heat map cell that covers several ranks or steps shows their maximum, because a mean would hide one late
rank in a thousand. Ranks far above the others have rows of their own, at the top.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import inf
from statistics import quantiles

from msgspec import Struct

from zprof.base.formatting import format_ms, format_ns, format_percent
from zprof.model.cursor import Cursor, every, get, get_path, read
from zprof.model.quantities import Aggregation, Unit, Value, find_unit
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, Blame, CriticalPath, RankTime
from zprof.reports.page import HeatCell, HeatMap, Note, Section, make_section
from zprof.reports.pages.ledger import read_terms
from zprof.reports.pages.names import format_ranks
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Column,
    Kind,
    LazyRows,
    Mark,
    Marked,
    Opens,
    Row,
    Table,
    make_number_columns,
    make_table,
    make_text_column,
)

MAX_HEAT_ROWS, MAX_HEAT_COLUMNS = 64, 24
LEVELS = 10
#: Maximum number of ranks that have a row of their own because they are outliers.
_MAX_OUTLIERS = 16
#: Fewer numbers than this have no outliers.
_MIN_KNOWN = 8
_FENCE_FACTOR = 3.0
_MIN_FENCE_RATIO = 0.02
#: Scales below this are shown in microseconds.
_MICROSECONDS_BELOW_NS = 10_000_000
#: Minimum width of a scale relative to its smallest time, to give similar times similar colours.
_MIN_BREADTH = 0.1
_MAX_TEXT_RANKS, _MAX_TEXT_LATE = 8, 4
_MAX_REASONS = 3
#: Smaller shares of the path are not listed.
_MIN_PATH_RATIO = 0.005
#: Maximum number of path shares in the summary line of a screen.
_MAX_PATH_SHARES = 4
#: Number of each column's largest values that the rank table always includes.
_TOP_PER_COLUMN = 16
#: Minimum screen widths to show idle time, peak, critical path, and the rest.
_NARROW, _WIDE, _WIDER, _WIDEST = 88, 100, 120, 160


class Measured(Struct, frozen=True, kw_only=True):
    """A time of one rank in one step."""

    rank: int
    step: int
    ns: int


class HeatScale(Struct, frozen=True):
    """The range of times that the colours of a map cover, in ns."""

    low: int
    high: int

    @property
    def unit(self) -> str:
        """The unit of the map."""
        return "µs" if self.high < _MICROSECONDS_BELOW_NS else "ms"

    def cell(self, ns: int | None, label: str = "") -> HeatCell:
        """Return the cell of a time; None is unknown."""
        if ns is None:
            return HeatCell(text=UNKNOWN, level=-1, label=label)
        share = (ns - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        text = f"{ns / 1e3:.0f}" if self.unit == "µs" else format_ms(ns)
        return HeatCell(text=text, level=min(LEVELS - 1, int(share * LEVELS)), label=label)

    def legend(self) -> tuple[HeatCell, ...]:
        """Return the lower bound of each colour."""
        breadth = self.high - self.low
        if not breadth:
            return (self.cell(self.low),)
        starts = (self.low + round(breadth * level / LEVELS) for level in range(LEVELS))
        return tuple(HeatCell(text=self.cell(start).text, level=level) for level, start in enumerate(starts))


def compute_fence(values: Sequence[float], min_difference: float = 0.0) -> float:
    """Return the value above which one of the values is an outlier; infinite for fewer than 8 values.

    It is the upper quartile plus the largest of 3 interquartile ranges, 2 % of the upper quartile, and
    ``min_difference``.
    """
    if len(values) < _MIN_KNOWN:
        return inf
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high + max(_FENCE_FACTOR * (high - low), _MIN_FENCE_RATIO * abs(high), min_difference)


def find_outliers(entries: Sequence[Measured], min_difference_ns: int = 0) -> list[int]:
    """Return the ranks that are far above the others of the same step in any step, largest time first."""
    by_step: dict[int, list[Measured]] = defaultdict(list)
    for entry in entries:
        by_step[entry.step].append(entry)
    worst_ns: dict[int, int] = {}
    for in_step in by_step.values():
        fence_ns = compute_fence([entry.ns for entry in in_step], min_difference_ns)
        for entry in in_step:
            if entry.ns > fence_ns:
                worst_ns[entry.rank] = max(entry.ns, worst_ns.get(entry.rank, 0))
    return sorted(worst_ns, key=lambda rank: (-worst_ns[rank], rank))


def heat_map(
    title: str, entries: Sequence[Measured], notes: Iterable[str] = (), min_difference_ns: int = 0
) -> HeatMap | None:
    """Build the heat map, outliers first, or return None if nothing was measured."""
    if not entries:
        return None
    outliers = find_outliers(entries, min_difference_ns)[:_MAX_OUTLIERS]
    others = sorted({entry.rank for entry in entries} - set(outliers))
    ranks = [*split_evenly(outliers, len(outliers)), *split_evenly(others, MAX_HEAT_ROWS - len(outliers))]
    steps = split_evenly(sorted({entry.step for entry in entries}), MAX_HEAT_COLUMNS)
    # Maximum time of each cell; cells without times are missing.
    row_of = {rank: row for row, ranks_in in enumerate(ranks) for rank in ranks_in}
    column_of = {step: column for column, steps_in in enumerate(steps) for step in steps_in}
    cells: dict[tuple[int, int], int] = {}
    for entry in entries:
        cell_key = row_of[entry.rank], column_of[entry.step]
        cells[cell_key] = max(entry.ns, cells.get(cell_key, entry.ns))
    min_ns, max_ns = min(cells.values()), max(cells.values())
    scale = HeatScale(min_ns, max(max_ns, round(min_ns * (1 + _MIN_BREADTH))))
    worst = max(entries, key=lambda entry: (entry.ns, -entry.rank, -entry.step))
    first = f"Ranks far above the others of a step come first: {format_ranks(outliers)}."
    largest = f"Largest: rank {worst.rank} in step {worst.step}, {scale.cell(worst.ns).text} {scale.unit}."
    return HeatMap(
        title=title,
        unit=scale.unit,
        corner="step",
        columns=tuple(_format_range("", steps_in) for steps_in in steps),
        rows=tuple(
            (
                _format_range("rank ", ranks_in),
                tuple(scale.cell(cells.get((row, column))) for column in range(len(steps))),
            )
            for row, ranks_in in enumerate(ranks)
        ),
        scale=scale.legend(),
        notes=(
            largest,
            *([first] if outliers else []),
            *_describe_grouping(ranks, "rank"),
            *_describe_grouping(steps, "step"),
            *notes,
        ),
    )


def split_evenly(values: Sequence[int], max_groups: int) -> list[Sequence[int]]:
    """Split the values, in order, into at most ``max_groups`` groups of about equal size."""
    count = len(values)
    rows = min(max_groups, count)
    return [values[count * row // rows : count * (row + 1) // rows] for row in range(rows)]


def _format_range(noun: str, values: Sequence[int]) -> str:
    return f"{noun}{values[0]}" if len(values) == 1 else f"{noun}{values[0]}-{values[-1]}"


def _describe_grouping(groups: Sequence[Sequence[int]], noun: str) -> tuple[str, ...]:
    """Describe the grouping of ranks or steps, if any."""
    count = sum(len(group) for group in groups)
    if count == len(groups):
        return ()
    return (f"{count:,} {noun}s in {len(groups)} groups: each cell shows the maximum of its {noun}s.",)


def build_rank_section(report: Report) -> tuple[Section, ...]:
    """Build the rank section; empty for a job of one rank, which the ledger section covers."""
    if report.run.world_size < 2:
        return ()
    return make_section(
        "ranks",
        "Ranks",
        "Which ranks were late, and which waited for them.",
        build_lateness_map(report),
        build_step_time_map(report),
        build_rank_table(report) if report.time.per_rank else None,
        *_build_late_blocks(report),
        *build_critical_path_blocks(report),
    )


def build_lateness_map(report: Report) -> HeatMap | None:
    """Build the map of each rank's lateness at the collectives of each step."""
    time = report.time
    late = [Measured(rank=entry.rank, step=entry.step, ns=entry.mean_ns) for entry in time.lateness]
    uncertainty_ns = time.alignment.uncertainty_ns if time.alignment else None
    note = (
        ()
        if uncertainty_ns is None
        else (
            f"Values below {format_ns(uncertainty_ns)}, the uncertainty of the clocks, are not significant.",
        )
    )
    return heat_map(
        f"Lateness: start of collectives after the first rank of the group, mean {time.basis}",
        late,
        note,
        uncertainty_ns or 0,
    )


def build_step_time_map(report: Report) -> HeatMap | None:
    """Build the map of the wall time of each step on each rank."""
    wall = [Measured(rank=entry.rank, step=entry.step, ns=entry.wall_ns) for entry in report.time.steps]
    return heat_map("Step time", wall)


def build_rank_table(report: Report, hosts: Mapping[int, str] | None = None) -> Table:
    """Build one row per rank, largest wait caused first.

    Args:
        report: The report.
        hosts: Machine of each rank, if known.
    """
    order, period = sort_ranks(report), report.time.basis
    shown, places = _select_ranks(report, order), _RankPlaces(report)
    columns = (
        make_text_column("rank"),
        Column(title="wall", unit="ms", help="step time"),
        *(
            Column(title=LEDGER_NAMES[term], unit="ms", help=help, from_width=from_width)
            for term, help, from_width in _TERMS
        ),
        Column(title="overlap", unit="%", help="hidden share of the collectives", from_width=_WIDEST),
        *_make_blame_columns(period),
        Column(title="peak", unit="bytes", help="peak of allocated memory", wide=True, from_width=_WIDE),
        Column(
            title="on path",
            unit="ms",
            help=f"the rank's time on the critical path, {period}",
            wide=True,
            from_width=_WIDER,
        ),
        *(
            [Column(title="host", kind=Kind.TEXT, help="machine that the rank ran on", from_width=_WIDEST)]
            if hosts
            else []
        ),
    )

    def make_row(number: int) -> Row:
        rank = shown[number]
        cells = places.make_cells(rank)
        host = [hosts.get(rank) or Marked("unknown", Mark.MUTED)] if hosts else []
        return Row(key=str(rank), cells=(*cells, *host), opens=Opens.RANK, target=rank)

    return Table(
        name="ranks",
        title="Ranks",
        columns=columns,
        rows=LazyRows(len(shown), make_row),
        unit="ms",
        note=f"{period}, most wait caused first",
        max_text_rows=_MAX_TEXT_RANKS,
        order=order_by_waiting(report.time.per_rank, shown),
        help=f"Means {period}. Press enter on a rank to select it on all screens, and on a number for its "
        "formula and source rows.",
        total=len(order),
        noun="ranks, with the largest of each column",
    )


#: Ledger terms, their meaning, and the minimum screen width to show each.
_TERMS = (
    ("compute_ns", "time in which the rank computes", 0),
    ("exposed_transfer_ns", "data moves, not hidden by compute", 0),
    ("exposed_wait_ns", "waiting for other ranks, not hidden by compute", 0),
    ("exposed_memcpy_ns", "copies, not hidden by compute or collectives", _WIDEST),
    ("idle_ns", "neither running work nor waiting for a collective", _NARROW),
    ("unexplained_ns", "the rest of the wall time", _WIDEST),
)


def _make_blame_columns(period: str) -> tuple[Column, ...]:
    return (
        Column(
            title="wait caused",
            unit="ms",
            help=f"exposed wait caused {period}, averaged over the ranks that waited",
            wide=True,
        ),
        Column(
            title="arrived last",
            unit="%",
            help="share of the judged collectives at which the rank arrived last",
            wide=True,
        ),
        Column(
            title="because",
            kind=Kind.TEXT,
            help="main reason why the rank arrived last: what it spent more time on than the others",
            wide=True,
            takes_rest=True,
        ),
    )


def sort_ranks(report: Report) -> list[int]:
    """Return all ranks by exposed wait caused, then by step time minus compute, then by number."""
    caused = {entry.rank: entry.exposed_wait_ns for entry in _list_blames(report)}
    lost = {entry.rank: entry.wall_ns - entry.compute_ns for entry in report.time.per_rank}
    ranks = {*report.run.ranks_loaded, *lost, *(entry.rank for entry in report.memory.per_rank)}
    return sorted(ranks, key=lambda rank: (-caused.get(rank, 0), -lost.get(rank, 0), rank))


def _select_ranks(report: Report, order: Sequence[int]) -> Sequence[int]:
    """Limit the ranks to `MAX_ROWS`, keeping the largest of each column so that sorting finds them."""
    if len(order) <= MAX_ROWS:
        return order
    path: dict[int, float] = defaultdict(float)
    for share in report.time.critical_path.shares if report.time.critical_path else ():
        path[share.rank] += share.ns
    columns: list[Mapping[int, float]] = [
        *(
            {entry.rank: getattr(entry, name) for entry in report.time.per_rank}
            for name in ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns")
        ),
        *(
            {entry.rank: getattr(entry, name) for entry in _list_blames(report)}
            for name in ("exposed_wait_per_rank_ns", "last_ratio")
        ),
        {entry.rank: entry.peak_bytes for entry in report.memory.per_rank},
        path,
    ]
    selected: set[int] = set()
    for values in columns:
        selected.update(nlargest(_TOP_PER_COLUMN, values, key=lambda rank: (values[rank], -rank)))
    selected.update([rank for rank in order if rank not in selected][: max(0, MAX_ROWS - len(selected))])
    return [rank for rank in order if rank in selected]


def _list_blames(report: Report) -> Sequence[Blame]:
    return report.time.blame.per_rank if report.time.blame else ()


def order_by_waiting(times: Sequence[RankTime], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of these ranks, alternating between longest and shortest wait."""
    wait_ns = {entry.rank: entry.exposed_wait_ns for entry in times}
    by_wait = sorted(range(len(ranks)), key=lambda row: (-wait_ns.get(ranks[row], 0), ranks[row]))
    middle = (len(by_wait) + 1) // 2
    longest, shortest = by_wait[:middle], by_wait[: middle - 1 : -1] if middle else []
    alternating = [row for pair in zip(longest, shortest, strict=False) for row in pair]
    return (*alternating, *longest[len(shortest) :])


class _RankPlaces:
    """Cursors to each rank's entries in the report."""

    def __init__(self, report: Report) -> None:
        self._report, time = report, Cursor(report).time
        self._times = {get(place.rank): place for place in time.per_rank}
        is_judged = report.time.blame is not None and report.time.blame.judged > 0
        self._blames = {get(place.rank): place for place in time.blame.per_rank} if is_judged else {}
        self._memory = {get(place.rank): place for place in reversed(list(Cursor(report).memory.per_rank))}
        self._path: dict[int, list[Cursor]] = defaultdict(list)
        for place in time.critical_path.shares:
            self._path[get(place.rank)].append(place.ns)

    def make_cells(self, rank: int) -> tuple[Cell, ...]:
        """Return the cells of a rank without its host."""
        time = Cursor(self._report).time
        timed, blamed = self._times.get(rank), self._blames.get(rank)
        bounds = get(timed).bounds if timed is not None else {}
        reason: Cell = Marked("unknown" if blamed is None else "-", Mark.MUTED)
        reasons = get(blamed).reasons if blamed is not None else {}
        if reasons:
            reason = max(reasons, key=lambda name: (reasons[name], name)).replace("_", " ")
        path: Cell = Marked("-", Mark.MUTED)
        if self._path.get(rank):
            path = read(*self._path[rank], how=Aggregation.SUM, in_ms=True)
        elif not self._path:
            path = _make_unknown(time, "critical_path")
        return (
            str(rank),
            *(
                read_terms(timed, bounds)
                if timed is not None
                else [_make_unknown(time.per_rank, name) for name in ("wall_ns", *LEDGER_NAMES)]
            ),
            _read_or_unknown(timed, time.per_rank, "overlap_ratio"),
            _read_or_unknown(blamed, time.blame.per_rank, "exposed_wait_per_rank_ns"),
            _read_or_unknown(blamed, time.blame.per_rank, "last_ratio"),
            reason,
            _read_or_unknown(self._memory.get(rank), Cursor(self._report).memory.per_rank, "peak_bytes"),
            path,
        )


def _read_or_unknown(place: Cursor | None, entries: Cursor, name: str) -> Value:
    return _make_unknown(entries, name) if place is None else read(place[name], in_ms=name.endswith("_ns"))


def _make_unknown(entries: Cursor, name: str) -> Value:
    """Return an unknown value for a rank missing from a report list."""
    return Value(None, find_unit(name), leaves=(get_path(entries),))


def _build_late_blocks(report: Report) -> Iterator[Table | Note | None]:
    shares = report.time.blame
    if shares is None:
        return
    late = list_late_ranks(report)[:MAX_ROWS]
    yield make_table(
        "Late ranks",
        (
            make_text_column("rank"),
            *make_number_columns("wait caused", "incl. hidden", unit="ms"),
            Column(title="waiting ranks"),
            *make_number_columns("of all exposed waiting", unit="%", wide=True),
            *make_number_columns("arrived last", unit="%"),
            *make_number_columns("wait suffered", unit="ms"),
            make_text_column("because"),
        ),
        [_make_late_row(report, place) for place in late],
        unit="ms",
        note=f"{report.time.basis}, per waiting rank",
        max_text_rows=_MAX_TEXT_LATE,
        total=len(shares.per_rank) if len(late) == MAX_ROWS else len(late),
        noun="ranks, largest wait caused first",
    )
    if not late:
        return
    if shares.tied_ns:
        tied = f"{format_ns(shares.tied_ns)} of waiting is not attributed to a rank: the last two arrived"
        yield Note(text=f"{tied} within the uncertainty of the clocks.")
    if shares.unjudged_ns:
        unjudged = f"{format_ns(shares.unjudged_ns)} of waiting was not evaluated"
        yield Note(text=f"{unjudged} (first collective of a window, missing ranks, no match).")


def list_late_ranks(report: Report) -> list[Cursor]:
    """Return cursors to the ranks that others waited for, largest wait caused first."""
    places = list(Cursor(report).time.blame.per_rank)
    late = [place for place in places if get(place.wait_ns) > 0]
    return sorted(late, key=lambda place: (-get(place.exposed_wait_ns), -get(place.wait_ns), get(place.rank)))


def read_wait_share(report: Report, late: Cursor) -> Value:
    """Return a late rank's share of all exposed waiting caused."""
    blame = Cursor(report).time.blame
    everyone = every(blame.per_rank).exposed_wait_ns
    return read(late.exposed_wait_ns, everyone, blame.tied_ns, blame.unjudged_ns, how=Aggregation.SHARE)


def _make_late_row(report: Report, place: Cursor) -> tuple[Cell, ...]:
    reasons: Mapping[str, int] = get(place.reasons)
    weight = sum(reasons.values())
    by_weight = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))[:_MAX_REASONS]
    words = [f"{name.replace('_', ' ')} {part / weight * 100:.0f} %" for name, part in by_weight if part > 0]
    return (
        str(get(place.rank)),
        read(place.exposed_wait_per_rank_ns, in_ms=True),
        read(place.wait_per_rank_ns, in_ms=True),
        read(place.waiting_ranks),
        read_wait_share(report, place),
        read(place.last_ratio),
        read(place.own_wait_ns, in_ms=True),
        ", ".join(words) or "-",
    )


def build_critical_path_blocks(report: Report) -> tuple[Table | Note, ...]:
    """Build the table of ranks on the critical path and their activities; empty for one rank."""
    path = report.time.critical_path
    if path is None or not path.shares or report.run.world_size < 2:
        return ()
    path_entries = list_path_ranks(path)
    rows: list[tuple[Cell, ...]] = []
    for rank, rank_ns, kinds in path_entries:
        parts = [f"{kind} {format_ms(ns)}" for kind, ns in kinds if ns >= _MIN_PATH_RATIO * rank_ns]
        share = Value(rank_ns / max(1, path.wall_ns), Unit.RATIO)
        rows.append((str(rank), Value(rank_ns, Unit.NS, in_ms=True), share, ", ".join(parts)))
    table = make_table(
        "Critical path",
        (
            make_text_column("rank"),
            *make_number_columns("time", unit="ms"),
            *make_number_columns("share", unit="%"),
            make_text_column("activity", unit="ms"),
        ),
        rows,
        unit="ms",
        note=f"{report.time.basis}: what {'it' if report.time.is_whole else 'the step'} waited on, by rank",
        max_text_rows=_MAX_TEXT_LATE,
        noun="ranks, largest share first",
    )
    rest = path_entries[_MAX_TEXT_LATE:]
    others = f"; {len(rest)} other ranks: {format_ms(sum(ns for _, ns, _ in rest))} ms" if rest else ""
    note = Note(text=f"Entire path: {_join_path_kinds(path)}{others}.")
    return (*((table,) if table else ()), note)


def describe_critical_path(report: Report) -> Note | None:
    """Describe what the step waited on, over all ranks; None for a single rank."""
    path = report.time.critical_path
    if path is None or not path.shares or report.run.world_size < 2:
        return None
    return Note(text=f"Critical path: {_join_path_kinds(path)}.")


def _join_path_kinds(path: CriticalPath) -> str:
    return ", ".join(
        f"{kind} {format_percent(share)}" for kind, share in list_path_kinds(path) if share >= _MIN_PATH_RATIO
    )


def list_path_ranks(path: CriticalPath) -> list[tuple[int, int, tuple[tuple[str, int], ...]]]:
    """Return each rank's ns on the critical path, in total and by activity, largest part first."""
    parts: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for share in path.shares:
        parts[share.rank].append((share.what.value, share.ns))
    ranks = []
    for rank, kinds in parts.items():
        ranks.append((rank, sum(part for _, part in kinds), _sort_sums(kinds)))
    return sorted(ranks, key=lambda entry: (-entry[1], entry[0]))


def list_path_kinds(path: CriticalPath) -> tuple[tuple[str, float], ...]:
    """Return the shares of the critical path by activity, over all ranks, largest first."""
    sums = _sort_sums((share.what.value, share.ns) for share in path.shares)
    return tuple((kind, length / max(1, path.wall_ns)) for kind, length in sums)


def _sort_sums(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = defaultdict(int)
    for kind, length in parts:
        sums[kind] += length
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def build_path_parts(report: Report) -> list[list[Cell]]:
    """Build cells with the length and largest shares of the critical path; empty if unknown."""
    path, place = report.time.critical_path, Cursor(report).time.critical_path
    if path is None or not path.shares:
        return []
    parts: list[list[Cell]] = [[Marked("critical path", Mark.MUTED), read(place.wall_ns)]]
    for at in sorted(range(len(path.shares)), key=lambda at: -path.shares[at].ns)[:_MAX_PATH_SHARES]:
        share = path.shares[at]
        if share.ns >= _MIN_PATH_RATIO * path.wall_ns:
            ratio = read(place.shares[at].ns, place.wall_ns, how=Aggregation.SHARE)
            parts.append([f"r{share.rank} {share.what.value}", ratio])
    return parts
