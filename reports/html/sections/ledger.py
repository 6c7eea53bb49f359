"""The step ledger as a waterfall: each bar begins where the one above it ended, and the last is their sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zprof.model.report import Report
from zprof.model.time import StepTime
from zprof.model.units import format_ms, format_percent
from zprof.reports.html import words
from zprof.reports.html.blocks import Bar, Block, Column, Notes, Row, Table
from zprof.reports.shown.diagnosis_presenter import on_unclaimed_rank, unclaimed_terms
from zprof.reports.shown.presenter import LEDGER, LedgerRow, step_change_ns, step_ns
from zprof.reports.shown.presenter import ledger as terms
from zprof.reports.shown.time_presenter import per, unsplit_ns, worst_steps
from zprof.reports.shown.time_words import bounds, exposure_words, ledger_cells, signed, unsplit_words

_STEPS = 100
_KINDS = {name: term.removesuffix("_ns").replace("_", "-") for term, name in LEDGER}


@dataclass(frozen=True, slots=True)
class _Scale:
    """Nanoseconds as percent of the room."""

    low: int
    high: int

    def bar(self, begin: int, end: int, kind: str) -> Bar:
        left, right = sorted((begin, end))
        return Bar(
            begin=self._at(left),
            width=self._at(right) - self._at(left),
            zero=self._at(0),
            kind=f"time-{kind}",
        )

    def _at(self, value: int) -> float:
        return round(100 * (value - self.low) / max(1, self.high - self.low), 2)


def ledger(report: Report) -> Sequence[Block]:
    """Nothing where no step was timed: the gaps say why."""
    if not report.time.per_rank:
        return ()
    change = step_change_ns(report)
    table = _step(report) if change is None else _change(report, change)
    return (table, Notes(lines=_notes(report)), *_unclaimed(report), *_by_step(report))


def _step(report: Report) -> Table:
    rows, marks = terms(report), bounds(report.time.per_rank)
    whole, of = step_ns(report.time.per_rank), per(report.time)
    bars = _waterfall([row.this_ns for row in rows], [row.name for row in rows], whole)
    name = "= step" if of == "a step" else "= all"
    cells = [
        Row(
            cells=(row.name, marks.get(row.name, "") + format_ms(row.this_ns), format_percent(row.share), bar)
        )
        for row, bar in zip(rows, bars, strict=False)
    ]
    total = Row(cells=(name, format_ms(whole), "", bars[-1]), total=True)
    return Table(
        caption=f"Time {of}, mean of the ranks",
        columns=(
            Column(title="term"),
            *words.numbers(("time",), "ms"),
            *words.numbers(("share",), "%"),
            Column(title="each after the one above", bar=True),
        ),
        rows=(*cells, total),
    )


def _change(report: Report, change: int) -> Table:
    comparison = report.comparison
    assert comparison is not None
    assert comparison.step_time is not None
    before, after = bounds(comparison.baseline_time), bounds(report.time.per_rank)
    rows = terms(report)
    bars = _waterfall([row.change_ns or 0 for row in rows], [row.name for row in rows], change)
    cells = [Row(cells=(*_changed(row, before, after), bar)) for row, bar in zip(rows, bars, strict=False)]
    times = comparison.step_time
    total = ("= step", format_ms(times.a_ns), format_ms(times.b_ns), signed(change), bars[-1])
    return Table(
        caption=f"Where the {signed(change)} ms went: time {per(report.time)}, mean of the ranks",
        columns=(
            Column(title="term"),
            *words.numbers((words.name(comparison.baseline), words.name(report.run.name), "change"), "ms"),
            Column(title="change, each after the one above", bar=True),
        ),
        rows=(*cells, Row(cells=total, total=True)),
    )


def _changed(
    row: LedgerRow, before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[str, str, str, str]:
    was = "" if row.baseline_ns is None else before.get(row.name, "") + format_ms(row.baseline_ns)
    return (row.name, was, after.get(row.name, "") + format_ms(row.this_ns), signed(row.change_ns or 0))


def _waterfall(sizes: Sequence[int], names: Sequence[str], whole: int) -> list[Bar]:
    """A bar a term, and one for the whole, which begins at zero."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    scale = _Scale(min(0, whole, *ends), max(0, whole, *ends))
    steps = zip(ends, ends[1:], names, strict=False)
    return [*(scale.bar(begin, end, _KINDS[name]) for begin, end, name in steps), scale.bar(0, whole, "sum")]


def _notes(report: Report) -> tuple[str, ...]:
    of = per(report.time)
    notes = [exposure_words("collectives", report.time.per_rank, of)]
    comparison = report.comparison
    if comparison is not None and comparison.baseline_time:
        before = f"in {words.name(comparison.baseline)}"
        notes.append(exposure_words(before, comparison.baseline_time, of))
    unsplit = unsplit_words(report.time.per_rank)
    return (*notes, unsplit) if unsplit else tuple(notes)


def _unclaimed(report: Report) -> Sequence[Block]:
    rows = [
        (words.name(row.name), format_ms(row.left_ns), format_percent(row.share))
        for row in unclaimed_terms(report)
    ]
    columns = (
        Column(title="term"), *words.numbers(("not explained",), "ms"), *words.numbers(("of the step",), "%")
    )  # fmt: skip
    return words.table(f"Lost{on_unclaimed_rank(report)}, and explained by no finding", columns, rows)


def _by_step(report: Report) -> Sequence[Block]:
    shown = worst_steps(report.time, _STEPS)
    unsplit = {rank.rank for rank in report.time.per_rank if unsplit_ns([rank])}
    titles = ("wall", "compute", "transfer", "wait", "copies", "idle", "unexplained")
    columns = (Column(title="step"), Column(title="rank", numeric=True), *words.numbers(titles, "ms"))
    notes = (
        "transfer, wait, copies: the exposed part",
        *words.left_out(len(shown), len(report.time.steps), "steps of ranks, the longest ones"),
    )
    return words.table(
        "By step and rank", columns, [_one_step(step, unsplit) for step in shown], notes, folded_from=8
    )


def _one_step(step: StepTime, unsplit: set[int]) -> tuple[str, ...]:
    return (str(step.step), str(step.rank), *ledger_cells(step, is_bound=step.rank in unsplit))
