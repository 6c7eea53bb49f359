"""Build the ledger of a step: its terms, their change from a baseline, and what no finding explains."""

from collections.abc import Sequence

from zprof.model.formatting import format_ns, format_percent
from zprof.model.leaves import take_value
from zprof.model.quantities import Bound, Unit, Value
from zprof.model.report import Comparison, Report
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import Block, Item, ItemList, Note, Paragraph, Section, make_section
from zprof.reports.presenters.time_figures import (
    LedgerRow,
    find_unclaimed_step_ns,
    ledger,
    list_unclaimed_terms,
    step_change_ns,
    step_ns,
)
from zprof.reports.presenters.time_formatting import (
    describe_exposure,
    describe_unsplit_time,
    describe_window,
)
from zprof.reports.table import (
    Bar,
    Column,
    Kind,
    Row,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_COLOURS = {name: f"time-{term.removesuffix('_ns').replace('_', '-')}" for term, name in LEDGER_NAMES.items()}

#: Smaller shares of what grew are not worth a line.
_MIN_REST_RATIO = 0.05
#: What makes a term grow if no cause is found.
_LIKELY_REASONS = {
    "compute_ns": "more work per step, or a busier machine",
    "exposed_wait_ns": "ranks that are further apart",
    "exposed_transfer_ns": "more bytes, or a slower or busier link",
    "exposed_memcpy_ns": "more or larger copies",
    "idle_ns": "a host that is later",
    "unexplained_ns": "time that the recording does not cover",
}


def build_ledger_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if no step was timed (the gaps give the reason)."""
    if not report.time.per_rank:
        return ()
    title = "Where the time goes"
    return make_section(
        "ledger",
        title,
        f"The terms add up to the {report.time.total_name}.",
        build_ledger_table(report, title),
        *build_exposure_blocks(report),
        _build_unclaimed_table(report),
    )


def build_ledger_table(report: Report, title: str, rows: Sequence[LedgerRow] = ()) -> Table:
    """Build the table of all terms, or of ``rows``, and their sum, with a waterfall of bars."""
    shown = tuple(rows) or ledger(report)
    change = step_change_ns(report)
    if change is None or report.comparison is None:
        return _build_step_table(report, title, shown)
    return _build_change_table(report, report.comparison, change, title, shown)


def build_exposure_blocks(report: Report) -> tuple[Block, ...]:
    """Describe the exposed part of the collective time, for this run and its baseline."""
    period, ranks = report.time.basis, report.time.per_rank
    lines = [describe_exposure("Collectives", ranks, period)]
    before = report.comparison.baseline_time if report.comparison else ()
    if report.comparison and before:
        lines.append(describe_exposure(f"Collectives in {report.comparison.baseline}", before, period))
    lines += [describe_unsplit_time(ranks), describe_window(report.time)]
    return tuple(Paragraph(text=line) for line in lines if line)


def _build_step_table(report: Report, title: str, rows: Sequence[LedgerRow]) -> Table:
    total_ns = step_ns(report.time.per_rank)
    bars = _make_waterfall([row.this_ns for row in rows], rows, total_ns)
    table_rows = [
        Row(cells=(row.name, _make_ms(row.this_ns, row.bound), Value(row.share, Unit.RATIO), bar))
        for row, bar in zip(rows, bars, strict=False)
    ]
    name = report.time.total_name
    table_rows.append(Row(cells=(name, _make_ms(total_ns), "", bars[-1]), total=True))
    return Table(
        title=title,
        unit="ms",
        note=f"{report.time.basis}, mean of the ranks",
        columns=(
            make_text_column("term"),
            *make_number_columns("time", unit="ms"),
            *make_number_columns("share", unit="%"),
            Column(title="cumulative", kind=Kind.BAR),
        ),
        rows=tuple(table_rows),
    )


def _build_change_table(
    report: Report, comparison: Comparison, change: int, title: str, rows: Sequence[LedgerRow]
) -> Table:
    assert comparison.step_time is not None
    times = comparison.step_time
    bars = _make_waterfall([row.change_ns or 0 for row in rows], rows, change)
    table_rows = [
        Row(
            cells=(
                row.name,
                "" if row.baseline_ns is None else _make_ms(row.baseline_ns, row.baseline_bound),
                _make_ms(row.this_ns, row.bound),
                _make_ms(row.change_ns or 0, signed=True),
                bar,
            )
        )
        for row, bar in zip(rows, bars, strict=False)
    ]
    total_change = _make_ms(change, signed=True)
    total = ("step", _make_ms(times.a_ns), _make_ms(times.b_ns), total_change, bars[-1])
    return Table(
        title=title,
        unit="ms",
        note=f"{report.time.basis}, mean of the ranks: {total_change.text} ms",
        columns=(
            make_text_column("term"),
            Column(title=comparison.baseline, unit="ms"),
            Column(title=report.run.name, unit="ms"),
            Column(title="change", unit="ms"),
            Column(title="change, cumulative", kind=Kind.BAR),
        ),
        rows=(*table_rows, Row(cells=total, total=True)),
    )


def _make_ms(time_ns: int, bound: Bound = Bound.EXACT, *, signed: bool = False) -> Value:
    return Value(time_ns, Unit.NS, bound=bound, signed=signed, in_ms=True)


def _make_waterfall(sizes: Sequence[int], rows: Sequence[LedgerRow], total_ns: int) -> list[Bar]:
    """Return one bar per term, each starting at the end of the previous one, and a bar for the total."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    low, high = min(0, total_ns, *ends), max(0, total_ns, *ends)

    def scale(time_ns: int) -> float:
        return (time_ns - low) / max(1, high - low)

    bars = [
        Bar(
            segments=(
                (_COLOURS[row.name], scale(min(start, start + size)), scale(max(start, start + size))),
            ),
            share=row.share if size > 0 else 0.0,
            zero=scale(0),
        )
        for start, size, row in zip(ends, sizes, rows, strict=False)
    ]
    total = ("time-sum", scale(min(0, total_ns)), scale(max(0, total_ns)))
    return [*bars, Bar(segments=(total,), zero=scale(0))]


def _build_unclaimed_table(report: Report) -> Table | None:
    rows = [
        (row.name, take_value(row, "lost_ns"), Value(row.share, Unit.RATIO))
        for row in list_unclaimed_terms(report)
    ]
    return make_table(
        "Not explained by any finding",
        (
            make_name_column("term"),
            *make_number_columns("not explained", unit="time"),
            *make_number_columns(report.time.words.of_step, unit="%"),
        ),
        rows,
        note=f"lost{format_unclaimed_rank(report)}, {report.time.basis}",
    )


def build_unexplained_section(report: Report) -> tuple[Section, ...]:
    """Build the section on lost time that no finding explains; it is shown even if it is small."""
    if not report.time.per_rank or not report.unclaimed:
        return ()
    unexplained_ns = sum(max(0, lost_ns) for lost_ns in report.unclaimed.values())
    total_ns = find_unclaimed_step_ns(report)
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
    """Build what no finding claims of the terms that grew; None unless the step is longer than before."""
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
    """Return `` on rank 2``; empty if there is no such rank."""
    return "" if report.unclaimed_rank is None else f" on rank {report.unclaimed_rank}"
