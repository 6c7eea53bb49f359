"""The head of the text report: verdict, what to try, which run, what in it is simulated."""

from collections.abc import Sequence

from zprof.model.findings import Confidence
from zprof.model.printable import display_width, printable, printable_lines
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.model.units import format_percent
from zprof.reports.shown.memory_names import largest_peak
from zprof.reports.shown.presenter import peak_change_ratio
from zprof.reports.shown.run_words import describe_run, reported_steps
from zprof.reports.text.layout import code_or_text, is_code, page_width, wrap

_MARK = {
    VerdictStatus.OK: "✓",
    VerdictStatus.SLOWER: "✗",
    VerdictStatus.RISK: "!",
    VerdictStatus.INCONCLUSIVE: "?",
}


def summary(report: Report) -> list[str]:
    """The lines that a reader with ten seconds reads."""
    return [*verdict(report), *_try(report), *peak(report), "", *runs(report), *modelled(report)]


def verdict(report: Report) -> list[str]:
    """The answer."""
    return wrap(printable(report.verdict.sentence), first=f"{_MARK[report.verdict.status]} ")


def _try(report: Report) -> list[str]:
    """The fix of the first finding that is more than a guess."""
    finding = next((f for f in report.findings if f.confidence is not Confidence.LOW), None)
    if finding is None:
        return []
    first, *more = printable_lines(finding.fix)
    name = printable(finding.id)
    if first.endswith(":"):  # a fix for each of several engines
        return [f"  try: see the fix of {name} below"]
    note = f"  (all of it: {name} below)" if more else ""
    if not is_code(first) or display_width(f"  try: {first}{note}") <= page_width():
        return wrap(f"{first}{note}", first="  try: ", rest="       ")
    lines = code_or_text(first, first="  try: ")
    return [*lines, *wrap(note.strip(), first="       ")] if note else lines


def peak(report: Report) -> list[str]:
    """The largest peak, and what it was before."""
    ranks = report.memory.per_rank
    if not ranks:
        return []
    peak = largest_peak(ranks)
    before = report.comparison.baseline_memory if report.comparison else ()
    if not before and not report.time.per_rank:
        return []  # the verdict says it
    if not before:
        return wrap(f"peak memory {peak} on the largest rank")
    change = format_percent(peak_change_ratio(before, ranks))
    sign = "" if change.startswith("-") else "+"
    return wrap(f"peak memory {peak} vs {largest_peak(before)} on the largest rank, {sign}{change}")


def runs(report: Report) -> list[str]:
    """This run, and its baseline."""
    lines = wrap(describe_run(report.run, reported_steps(report, report.run)), first="  run       ")
    if report.comparison and report.comparison.baseline_run:
        before = report.comparison.baseline_run
        lines += wrap(describe_run(before, reported_steps(report, before)), first="  baseline  ")
    return lines


def modelled(report: Report) -> list[str]:
    """What in the runs is simulated: never left out."""
    baseline = report.comparison.baseline_run if report.comparison else None
    return modelled_in([report.run] if baseline is None else [report.run, baseline])


def modelled_in(runs: Sequence[RunFacts]) -> list[str]:
    """What in these runs is simulated."""
    names = dict.fromkeys(name for run in runs for name in run.modelled)
    if not names:
        return []
    return [
        *wrap(printable("; ".join(names)), first="  MODELLED  "),
        "            simulated, not run: these times are the model's, not your hardware's",
    ]
