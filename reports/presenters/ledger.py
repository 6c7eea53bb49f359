"""Where a step goes: the ledger that sums to it, its change against a baseline, and what nothing explains."""

from collections.abc import Mapping, Sequence

from zprof.model.formatting import format_ms, format_ns, format_percent
from zprof.model.report import Comparison, Report
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import (
    Bar,
    Block,
    Column,
    Kind,
    Note,
    Paragraph,
    Row,
    Section,
    Table,
    make_name_column,
    make_number_columns,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.time_figures import (
    LedgerRow,
    find_unclaimed_step_ns,
    is_whole_trace,
    ledger,
    list_unclaimed_terms,
    step_change_ns,
    step_ns,
)
from zprof.reports.presenters.time_words import (
    bounds,
    describe_exposure,
    describe_period,
    describe_unsplit_time,
    describe_window,
    format_signed_ms,
)

_COLOURS = {name: f"time-{term.removesuffix('_ns').replace('_', '-')}" for term, name in LEDGER_NAMES.items()}


def build_ledger_section(report: Report) -> tuple[Section, ...]:
    """Return the ledger and what it leaves open; nothing if no step was timed: the gaps say why."""
    if not report.time.per_rank:
        return ()
    title = "Where the time goes"
    return make_section(
        "ledger",
        title,
        "The terms sum to the step.",
        build_ledger_table(report, title),
        *build_exposure_blocks(report),
        _unclaimed_table(report),
    )


def build_ledger_table(report: Report, title: str, rows: Sequence[LedgerRow] = ()) -> Table:
    """Return the terms and their sum, all of them or ``rows``, with bars that form a waterfall."""
    shown = tuple(rows) or ledger(report)
    change = step_change_ns(report)
    if change is None or report.comparison is None:
        return _step_table(report, title, shown)
    return _change_table(report, report.comparison, change, title, shown)


def build_exposure_blocks(report: Report) -> tuple[Block, ...]:
    """Return how much of the collectives' time nothing hides, of this run and of its baseline."""
    of, ranks = describe_period(report.time), report.time.per_rank
    lines = [describe_exposure("Collectives", ranks, of)]
    before = report.comparison.baseline_time if report.comparison else ()
    if report.comparison and before:
        lines.append(describe_exposure(f"Collectives in {report.comparison.baseline}", before, of))
    lines += [describe_unsplit_time(ranks), describe_window(report.time)]
    return tuple(Paragraph(text=line) for line in lines if line)


def _step_table(report: Report, title: str, rows: Sequence[LedgerRow]) -> Table:
    marks = bounds(report.time.per_rank)
    whole = step_ns(report.time.per_rank)
    bars = _waterfall([row.this_ns for row in rows], rows, whole)
    made = [
        Row(cells=(row.name, _marked(marks, row.name, row.this_ns), format_percent(row.share), bar))
        for row, bar in zip(rows, bars, strict=False)
    ]
    name = "total" if is_whole_trace(report.time) else "step"
    made.append(Row(cells=(name, format_ms(whole), "", bars[-1]), total=True))
    return Table(
        title=title,
        unit="ms",
        note=f"{describe_period(report.time)}, mean of the ranks",
        columns=(
            make_text_column("term"),
            *make_number_columns("time", unit="ms"),
            *make_number_columns("share", unit="%"),
            Column(title="each after the one above", kind=Kind.BAR),
        ),
        rows=tuple(made),
    )


def _change_table(
    report: Report, comparison: Comparison, change: int, title: str, rows: Sequence[LedgerRow]
) -> Table:
    assert comparison.step_time is not None
    times = comparison.step_time
    before, after = bounds(comparison.baseline_time), bounds(report.time.per_rank)
    bars = _waterfall([row.change_ns or 0 for row in rows], rows, change)
    made = [
        Row(
            cells=(
                row.name,
                "" if row.baseline_ns is None else _marked(before, row.name, row.baseline_ns),
                _marked(after, row.name, row.this_ns),
                format_signed_ms(row.change_ns or 0),
                bar,
            )
        )
        for row, bar in zip(rows, bars, strict=False)
    ]
    total = ("step", format_ms(times.a_ns), format_ms(times.b_ns), format_signed_ms(change), bars[-1])
    return Table(
        title=title,
        unit="ms",
        note=f"{describe_period(report.time)}, mean of the ranks: {format_signed_ms(change)} ms",
        columns=(
            make_text_column("term"),
            Column(title=comparison.baseline, unit="ms"),
            Column(title=report.run.name, unit="ms"),
            Column(title="change", unit="ms"),
            Column(title="change, each after the one above", kind=Kind.BAR),
        ),
        rows=(*made, Row(cells=total, total=True)),
    )


def _marked(marks: Mapping[str, str], name: str, ns: int) -> str:
    return marks.get(name, "") + format_ms(ns)


def _waterfall(sizes: Sequence[int], rows: Sequence[LedgerRow], whole: int) -> list[Bar]:
    """Return a bar per term that starts where the one before it ended, and one for the whole."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    low, high = min(0, whole, *ends), max(0, whole, *ends)

    def place(ns: int) -> float:
        return (ns - low) / max(1, high - low)

    bars = [
        Bar(
            share=row.share if size > 0 else 0.0,
            start=place(min(start, start + size)),
            end=place(max(start, start + size)),
            zero=place(0),
            colour=_COLOURS[row.name],
        )
        for start, size, row in zip(ends, sizes, rows, strict=False)
    ]
    return [*bars, Bar(share=0.0, start=place(min(0, whole)), end=place(max(0, whole)), zero=place(0))]


def _unclaimed_table(report: Report) -> Table | None:
    rows = [
        (row.name, format_ns(row.left_ns), format_percent(row.share)) for row in list_unclaimed_terms(report)
    ]
    return make_table(
        "Explained by no finding",
        (
            make_name_column("term"),
            *make_number_columns("not explained", unit="time"),
            *make_number_columns("of the step", unit="%"),
        ),
        rows,
        note=f"lost{format_unclaimed_rank(report)}, {describe_period(report.time)}",
    )


def build_unexplained_section(report: Report) -> tuple[Section, ...]:
    """Return what is lost and not claimed by any finding, and its size also if it is small."""
    if not report.time.per_rank or not report.unclaimed:
        return ()
    rest = sum(max(0, left) for left in report.unclaimed.values())
    whole = find_unclaimed_step_ns(report)
    total = f"{format_ns(whole)} {describe_period(report.time)}{format_unclaimed_rank(report)}"
    share = f" ({format_percent(rest / whole)})" if whole else ""
    if rest:
        said = f"{format_ns(rest)} of {total}{share} is lost, and no finding explains it."
    else:
        said = f"Nothing of {total} is lost without a finding that explains it."
    return make_section("unexplained", "Unexplained", "", Note(text=said), _unclaimed_table(report))


def format_unclaimed_rank(report: Report) -> str:
    """Return `` on rank 2``; empty if no rank is named."""
    return "" if report.unclaimed_rank is None else f" on rank {report.unclaimed_rank}"
