"""The step, term by term, as bars that end where the next begins: they sum to the step, or to its change."""

from collections.abc import Mapping
from itertools import accumulate

from zprof.model.printable import shorten
from zprof.model.report import Report
from zprof.reports.presenters.time_figures import LEDGER, ledger, per, step_change_ns
from zprof.reports.presenters.time_words import AT_LEAST, AT_MOST, bounds
from zprof.tui.figures import How, Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Bar, Cell, Column, Line, Mark, Table, Word

_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP = "wall_ns"
_LONGEST_NAME = 20
#: 0.0 in milliseconds with one decimal.
_NOTHING_NS = 50_000
_BOUND = {AT_LEAST: "at least", AT_MOST: "at most"}


def ledger_table(loaded: Loaded) -> Table:
    """The terms by weight, then the step that they sum to; with a baseline its side and the change."""
    report = loaded.report
    compared = step_change_ns(report) is not None
    columns = [
        Column(title="term", says="terms of the step's wall time"),
        Column(title="ms", numeric=True, says="this run"),
        Column(title="of step", numeric=True),
    ]
    if compared:
        columns.append(Column(title="was ms", numeric=True, says="the baseline"))
        columns.append(Column(title="change", numeric=True, says="in ms; the changes sum to the step's"))
    columns.append(Column(title="", says="each bar begins where the one above it ends"))
    terms = shown_terms(report)
    segments = bar_segments(report, terms)
    lines = [_term(loaded, term, segments, compared=compared) for term in (*terms, _STEP)]
    return Table(
        name="ledger",
        title=_title(report, compared=compared),
        columns=tuple(columns),
        lines=tuple(lines) if report.time.per_rank else (),
        help="Means over ranks and steps. The terms sum to the step time; terms of 0.0 ms are left out.\n"
        "enter on a number: its formula, its inputs, and the steps that it was measured from.",
        note=f"{per(report.time)}, mean over ranks" if report.time.per_rank else "no step was timed",
    )


def _title(report: Report, *, compared: bool) -> str:
    if not compared or report.comparison is None:
        return "where the time goes"
    before, after = (shorten(name, _LONGEST_NAME) for name in (report.comparison.baseline, report.run.name))
    return f"where the time goes: from {before} to {after}"


def shown_terms(report: Report) -> list[str]:
    """The terms that are anything at all, the largest (or the most changed) first."""
    names = {name: term for term, name in LEDGER}
    rows = [
        (row.this_ns if row.change_ns is None else row.change_ns, row)
        for row in ledger(report)
        if max(abs(row.this_ns), abs(row.baseline_ns or 0), abs(row.change_ns or 0)) >= _NOTHING_NS
    ]
    return [names[row.name] for _, row in sorted(rows, key=lambda entry: -entry[0])]


def bar_segments(report: Report, terms: list[str]) -> Mapping[str, tuple[tuple[str, float, float], ...]]:
    """Where each term's bar begins and ends; the step's is all of them, or its change from 0 on."""
    rows = {row.name: row for row in ledger(report)}
    names = dict(LEDGER)
    compared = step_change_ns(report) is not None
    sizes = [(rows[names[term]].change_ns if compared else rows[names[term]].this_ns) or 0 for term in terms]
    ends = list(accumulate(sizes))
    low, high = min([0, *ends]), max([0, *ends])
    scale = max(1, high - low)
    found: dict[str, tuple[tuple[str, float, float], ...]] = {}
    for term, end, size in zip(terms, ends, sizes, strict=True):
        first, last = sorted((end - size, end))
        found[term] = ((term, (first - low) / scale, (last - low) / scale),) if size else ()
    stacked = tuple(segment for term in terms for segment in found[term])
    total = sorted((0, ends[-1])) if ends else [0, 0]
    change = ((_STEP, (total[0] - low) / scale, (total[1] - low) / scale),)
    return {**found, _STEP: change if compared else stacked}


def _term(
    loaded: Loaded, term: str, segments: Mapping[str, tuple[tuple[str, float, float], ...]], *, compared: bool
) -> Line:
    tree, is_step = loaded.tree, term == _STEP
    cells: list[Cell] = [
        Word("= step" if is_step else _name(loaded.report, term)),
        figure(tree, Unit.MS, f"{_RANKS}.{term}", how=How.MEAN),
        figure(tree, Unit.RATIO, f"{_RANKS}.{term}", f"{_RANKS}.{_STEP}", how=How.SHARE),
    ]
    if compared:
        cells.append(figure(tree, Unit.MS, f"{_BASELINE}.{term}", how=How.MEAN))
        cells.append(
            figure(tree, Unit.MS, "comparison.ledger_delta[*]", how=How.SUM, signed=True)
            if is_step
            else figure(tree, Unit.MS, f"comparison.ledger_delta.{term}", signed=True)
        )
    cells.append(Bar("", segments=segments[term]))
    return Line(key=term, cells=tuple(cells), mark=Mark.TITLE if is_step else Mark.PLAIN)


def _name(report: Report, term: str) -> str:
    """With what it is a bound of, where waiting and moving bytes could not be told apart."""
    name = dict(LEDGER)[term]
    mark = bounds(report.time.per_rank).get(name)
    return f"{name}, {_BOUND[mark]}" if mark else name
