"""Where the time of a step goes: the ledger, its change from a baseline, and what no finding explains."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate
from zprof.model.cursor import Cursor, every, get, read
from zprof.model.quantities import BOUND_WORDS, Aggregation, Bound, Bounds, Value, negate_bound
from zprof.model.report import Report
from zprof.model.time import (
    LEDGER_NAMES,
    PartialGroup,
    RankTime,
    Time,
    WindowPolicy,
    bound_exposed_time,
    has_unsplit_wait,
    mean_over_ranks,
)
from zprof.reports.page import Item, ItemList, Note, Paragraph, Section, make_section
from zprof.reports.pages.names import group_name
from zprof.reports.table import (
    Bar,
    Cell,
    Column,
    Kind,
    Row,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

TITLE = "Where the time goes"
_STEP = "wall_ns"
#: Bar colour of each term.
_COLOURS = {
    **{term: f"time-{term.removesuffix('_ns').replace('_', '-')}" for term in LEDGER_NAMES},
    _STEP: "time-sum",
}
#: Smaller terms are shown as 0.0 ms.
_MIN_TERM_NS = 50_000
#: Source of a window with steps marked by the program itself.
_MARKED = "recorder"
#: Below this share of a step, nobody is asked for another rank's trace.
_MIN_PARTIAL_RATIO = 0.01
#: Below this factor, a link counts as about as fast as usual.
_MIN_SLOW_FACTOR = 2.0
#: Smaller shares of the growth get no line.
_MIN_REST_RATIO = 0.05
#: Reasons for the growth of a term, if no cause is found.
_LIKELY_REASONS = {
    "compute_ns": "more work per step, or a busier machine",
    "exposed_wait_ns": "ranks that are further apart",
    "exposed_transfer_ns": "more bytes, or a slower or busier link",
    "exposed_memcpy_ns": "more or larger copies",
    "idle_ns": "a host that is later",
    "unexplained_ns": "time that the recording does not cover",
}


def build_ledger_section(report: Report) -> tuple[Section, ...]:
    """Build the ledger section; empty if no step was timed (the gaps give the reason)."""
    if not report.time.per_rank:
        return ()
    # Describe the exposed part of the collective time for this run and its baseline.
    period, ranks = report.time.basis, report.time.per_rank
    lines = [describe_exposure("Collectives", ranks, period)]
    before = report.comparison.baseline_time if report.comparison else ()
    if report.comparison and before:
        lines.append(describe_exposure(f"Collectives in {report.comparison.baseline}", before, period))
    lines += [describe_unsplit_time(ranks), describe_partial_group(report), describe_window(report.time)]
    return make_section(
        "ledger",
        TITLE,
        f"The terms add up to the {report.time.total_name}.",
        build_ledger_table(report, tuple(LEDGER_NAMES)),
        *(Paragraph(text=line) for line in lines if line),
        _build_unclaimed_table(report),
    )


def build_ledger_table(report: Report, terms: Sequence[str] | None = None) -> Table:
    """Build the table of these terms and the step, with a bar waterfall and the baseline if any.

    Args:
        report: The report.
        terms: Ledger terms in order; None: largest first, without terms that round to 0.0 ms.
    """
    shown = list_terms(report) if terms is None else tuple(terms)
    comparison, is_compared = report.comparison, _get_changes(report) is not None
    bars = layout_bars(report, shown)
    note = f"{report.time.basis}, mean of the ranks"
    columns = (*make_number_columns("time", unit="ms"), *make_number_columns("share", unit="%"))
    if comparison is not None and is_compared:
        deltas = every(Cursor(report).comparison.ledger_delta)
        total = read(deltas, how=Aggregation.SUM, signed=True, in_ms=True)
        note = f"{note}: {total.text} ms"
        columns = (
            Column(title=comparison.baseline, unit="ms", help="the baseline"),
            Column(title=report.run.name, unit="ms", help="this run"),
            Column(title="share", unit="%", help="share of the step of this run", wide=True),
            Column(title="change", unit="ms"),
        )
    rows = [
        Row(key=term, cells=(*_make_term_cells(report, term, is_compared=is_compared), bars[term]))
        for term in shown
    ]
    step = Row(
        key=_STEP, cells=(*_make_term_cells(report, _STEP, is_compared=is_compared), bars[_STEP]), total=True
    )
    return Table(
        name="ledger",
        title=TITLE,
        unit="ms",
        note=note if report.time.per_rank else "no step was timed",
        columns=(
            make_text_column("term"),
            *columns,
            Column(title="cumulative", kind=Kind.BAR, help="each bar starts where the one above it ends"),
        ),
        rows=(*rows, step) if report.time.per_rank else (),
        help="Means over ranks and steps. The terms sum to the step time, and their changes to its change; "
        "terms of 0.0 ms may be left out.\n"
        "Press enter on a number for its formula, its inputs, and the steps that it was measured from.",
    )


def list_terms(report: Report) -> tuple[str, ...]:
    """Return the terms sorted by share of the step or of its change, without terms that round to 0.0 ms."""
    changes = _get_changes(report) or {}
    before = report.comparison.baseline_time if report.comparison is not None and changes else ()
    weights: dict[str, int] = {}
    for term in LEDGER_NAMES:
        this_ns = mean_over_ranks(report.time.per_rank, term)
        sizes = (abs(changes.get(term, this_ns)), this_ns, mean_over_ranks(before, term))
        if max(sizes) >= _MIN_TERM_NS:
            weights[term] = sizes[0]
    return tuple(sorted(weights, key=lambda term: -weights[term]))


def _make_term_cells(report: Report, term: str, *, is_compared: bool) -> tuple[Cell, ...]:
    ranks = every(Cursor(report).time.per_rank)
    name = LEDGER_NAMES.get(term) or ("step" if is_compared else report.time.total_name)
    this = read(ranks[term], how=Aggregation.MEAN, in_ms=True)
    share = "" if term == _STEP else read(ranks[term], ranks.wall_ns, how=Aggregation.SHARE)
    if not is_compared:
        return (name, this, share)
    comparison = Cursor(report).comparison
    delta = comparison.ledger_delta
    return (
        name,
        read(every(comparison.baseline_time)[term], how=Aggregation.MEAN, in_ms=True),
        this,
        share,
        read(every(delta), how=Aggregation.SUM, signed=True, in_ms=True)
        if term == _STEP
        else read(delta[term], signed=True, in_ms=True),
    )


def layout_bars(report: Report, terms: Sequence[str]) -> dict[str, Bar]:
    """Return a bar per term, each starting at the end of the previous bar, and the bar of the step.

    The step bar stacks all terms, or with a baseline shows the change from 0.
    """
    changes = _get_changes(report)
    sizes = {
        term: mean_over_ranks(report.time.per_rank, term) if changes is None else changes[term]
        for term in terms
    }
    total_ns = step_ns(report.time.per_rank) if changes is None else sum(changes.values())
    ends = list(accumulate(sizes.values(), initial=0))
    low, high = min(0, total_ns, *ends), max(0, total_ns, *ends)
    largest = total_ns if changes is None else max(map(abs, changes.values()), default=0)

    def scale(time_ns: int) -> float:
        return (time_ns - low) / max(1, high - low)

    bars = {
        term: Bar(
            segments=_make_segments(term, scale(start), scale(start + size)) if size else (),
            share=max(0, size) / max(1, largest),
            zero=scale(0),
        )
        for start, (term, size) in zip(ends, sizes.items(), strict=False)
    }
    stacked = tuple(segment for bar in bars.values() for segment in bar.segments)
    change = _make_segments(_STEP, scale(0), scale(total_ns))
    bars[_STEP] = Bar(segments=change if changes is not None or not stacked else stacked, zero=scale(0))
    return bars


def _make_segments(name: str, start: float, end: float) -> tuple[tuple[str, float, float], ...]:
    return ((_COLOURS[name], min(start, end), max(start, end)),)


class Exposure(Struct, frozen=True, kw_only=True):
    """Collective time per step, mean over ranks. ``bound``: whether the exposed part is exact."""

    collective_ns: int
    exposed_ns: int
    hidden_ns: int
    ratio: float | None
    bound: Bound


def exposure(ranks: Sequence[RankTime]) -> Exposure:
    """Compute the exposed and hidden parts of the collective time."""
    collective = mean_over_ranks(ranks, "collective_ns")
    hidden = mean_over_ranks(ranks, "overlapped_ns")
    exposed = collective - hidden
    return Exposure(
        collective_ns=collective,
        exposed_ns=exposed,
        hidden_ns=hidden,
        ratio=exposed / collective if collective else None,
        bound=bound_exposed_time(ranks),
    )


def step_ns(ranks: Sequence[RankTime]) -> int:
    """Return the mean wall time of a step over all ranks."""
    return mean_over_ranks(ranks, "wall_ns")


def _get_changes(report: Report) -> Mapping[str, int] | None:
    """Return the changes of the terms, which sum to the change of the mean step; None without timed steps."""
    comparison = report.comparison
    return None if comparison is None or comparison.step_time is None else comparison.ledger_delta


def describe_exposure(subject: str, ranks: Sequence[RankTime], period: str) -> str:
    """Describe the exposed and hidden parts of the collective time."""
    exposed = exposure(ranks)
    if exposed.ratio is None:
        return f"{subject}: none ran in these steps."
    at_most, at_least = BOUND_WORDS[exposed.bound], BOUND_WORDS[negate_bound(exposed.bound)]
    return (
        f"{subject}: {format_ns(exposed.collective_ns)} {period}, "
        f"{at_most}{format_ns(exposed.exposed_ns)} exposed ({format_percent(exposed.ratio)}), "
        f"{at_least}{format_ns(exposed.hidden_ns)} hidden."
    )


def describe_unsplit_time(ranks: Sequence[RankTime]) -> str:
    """Describe the time that cannot be split into wait and transfer; empty if all can be split."""
    if not has_unsplit_wait(ranks):
        return ""
    unsplit = format_ns(mean_over_ranks(ranks, "unsplit_ns"))
    return (
        f"{unsplit} of the exposed time is in collectives that could not be compared on all "
        "ranks; there a late rank looks like a slow link (≥ and ≤ are bounds)."
    )


def describe_partial_group(report: Report) -> str:
    """Describe what the loaded ranks bound, and which trace to add; empty if no rank is missing, or little is
    lost.
    """
    partial, period = report.time.partial, report.time.basis
    if partial is None or partial.exposed_ns < _MIN_PARTIAL_RATIO * step_ns(report.time.per_rank):
        return ""
    total = f"{format_ns(partial.total_ns)} {period} in {_name_collectives(partial.group)}"
    exposed = f"{format_ns(partial.exposed_ns)} of {total} is exposed"
    if partial.least_bus_bytes_per_s is None:
        return f"{exposed}: a rank is late, or the link is slow. {_ask_for_ranks(partial)}"
    rate = format_rate(partial.least_bus_bytes_per_s)
    least = f"{format_bytes(partial.bytes)} in this time is at least {rate}"
    factor, usual = partial.slowdown_factor, partial.usual_bus_bytes_per_s
    if factor is None or usual is None:
        return f"{exposed}. {least}: a rank is late, or the link is that slow. {_ask_for_ranks(partial)}"
    place = "within a node" if partial.is_within_node else "between nodes"
    compared = f"{least}, where {format_rate(usual)} {place} are usual"
    if factor < _MIN_SLOW_FACTOR:
        waiting = format_ns(partial.total_ns * max(0.0, 1 - 1 / factor))
        return f"{exposed}. {compared}: on a usual link at most {waiting} of it is waiting for a late rank."
    return (
        f"{exposed}. {compared}: a rank is late, or the link is up to {factor:.0f} times too slow. "
        f"{_ask_for_ranks(partial)}"
    )


def _name_collectives(group: str) -> str:
    """Name a group, or the stream that stands for a group without metadata."""
    stream = group.removeprefix("stream:")
    return f"group {group_name(group)}" if stream == group else f"collectives of stream {group_name(stream)}"


def _ask_for_ranks(partial: PartialGroup) -> str:
    """Name the traces that tell a late rank from a slow link."""
    if not partial.missing:
        return "Add the traces of the missing ranks: they tell which."
    first, *others = partial.next_ranks
    rest = partial.missing - len(partial.next_ranks)
    more = f", then of {', '.join(map(str, others))}" if others else ""
    return f"Add the trace of rank {first}{more}{f' and {rest} more' if rest else ''}: it tells which."


def describe_window(time: Time) -> str:
    """Describe the measured window; empty if the recorder marked its steps."""
    window = time.window
    if window is None:
        return ""
    if window.policy is WindowPolicy.TRACE:
        return "Measured: the entire recording as one window (--window trace)."
    outside = window.pre_window_ns
    excluded = f"{format_ns(outside)} of device work outside the steps is excluded" if outside else ""
    if window.source == _MARKED:
        return f"{excluded}." if excluded else ""
    source = f"steps marked by {window.source}"
    if window.is_whole:
        source = "the entire trace as one window, because it has no step marks"
    return f"Measured: {source}{'; ' if excluded else ''}{excluded}."


def _build_unclaimed_table(report: Report) -> Table | None:
    step, unclaimed = _find_unclaimed_step(report), Cursor(report).unclaimed
    lost = sorted(
        (term for term, ns in report.unclaimed.items() if ns > 0), key=lambda term: -report.unclaimed[term]
    )
    return make_table(
        "Not explained by any finding",
        (
            make_name_column("term"),
            *make_number_columns("not explained", unit="time"),
            *make_number_columns(report.time.words.of_step, unit="%"),
        ),
        [
            (
                LEDGER_NAMES.get(term, term),
                read(unclaimed[term]),
                read(unclaimed[term], step, how=Aggregation.SHARE),
            )
            for term in lost
        ],
        note=f"lost{format_unclaimed_rank(report)}, {report.time.basis}",
    )


def build_unexplained_section(report: Report) -> tuple[Section, ...]:
    """Build the section on lost time that no finding explains, even if it is short."""
    if not report.time.per_rank or not report.unclaimed:
        return ()
    unexplained_ns = sum(max(0, lost_ns) for lost_ns in report.unclaimed.values())
    total_ns = get(_find_unclaimed_step(report)) or 0
    total = f"{format_ns(total_ns)} {report.time.basis}{format_unclaimed_rank(report)}"
    share = f" ({format_percent(unexplained_ns / total_ns)})" if total_ns else ""
    if unexplained_ns:
        text = f"{format_ns(unexplained_ns)} of {total}{share} is lost without a finding that explains it."
    else:
        text = f"Of {total}, all lost time is explained by findings."
    difference = _build_unclaimed_change(report)
    if difference is not None:
        rest = Note(text=text) if unexplained_ns else None
        return make_section("unexplained", "Difference without a finding", "", difference, rest)
    table = _build_unclaimed_table(report)
    return make_section("unexplained", "Lost without a finding", "", Note(text=text), table)


def _build_unclaimed_change(report: Report) -> Note | ItemList | None:
    """Build the growth of terms that no finding claims; None unless the step is longer than before."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None or sum(comparison.ledger_delta.values()) <= 0:
        return None
    grown_ns = sum(max(0, change) for change in comparison.ledger_delta.values())
    shown = {
        term: rest for term, rest in comparison.unclaimed_ns.items() if rest >= _MIN_REST_RATIO * grown_ns
    }
    if not shown:
        return Note(text=f"Of +{format_ns(grown_ns)} {report.time.basis}, findings claim all that grew.")
    items = tuple(
        Item(label=f"+{format_ns(rest)} {LEDGER_NAMES[term]}", text=f"perhaps {_LIKELY_REASONS[term]}")
        for term, rest in sorted(shown.items(), key=lambda item: -item[1])
    )
    return ItemList(items=items, total=len(items), noun="terms")


def format_unclaimed_rank(report: Report) -> str:
    """Return `` on rank 2``; empty without a rank."""
    return "" if report.unclaimed_rank is None else f" on rank {report.unclaimed_rank}"


def _find_unclaimed_step(report: Report) -> Cursor:
    """Return the cursor to the step of the rank with the shown unexplained loss, or of the slowest rank."""
    ranks = report.time.per_rank
    named = [at for at, rank in enumerate(ranks) if rank.rank == report.unclaimed_rank]
    slowest = max(range(len(ranks)), key=lambda at: ranks[at].wall_ns, default=0)
    return Cursor(report).time.per_rank[named[0] if named else slowest].wall_ns


def read_terms(place: Cursor, bounds: Bounds) -> tuple[Value, ...]:
    """Return wall, compute, exposed transfer, wait and copies, idle and unexplained of an entry, in ms."""
    return tuple(
        replace(read(place[term], in_ms=True), bound=bounds.get(term, Bound.EXACT))
        for term in (_STEP, *LEDGER_NAMES)
    )
