"""The head of the text report: verdict, what to try, which run, what in it is simulated."""

from collections.abc import Sequence

from zprof.model.findings import Confidence
from zprof.model.printable import printable, printable_lines
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.model.units import format_bytes, format_percent
from zprof.reports.shown.presenter import missing_ranks, peak_bytes, peak_change_ratio
from zprof.reports.text.layout import wrap

_NAMED = 4
#: What stands for a backend or an engine that nobody named.
_NOT_SAID = frozenset({"", "none", "unknown"})
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
    return wrap(f"{first}{note}", first="  try: ", rest="       ")


def peak(report: Report) -> list[str]:
    """The largest peak, and what it was before."""
    ranks = report.memory.per_rank
    if not ranks:
        return []
    peak = format_bytes(peak_bytes(ranks))
    before = report.comparison.baseline_memory if report.comparison else ()
    if not before and not report.time.per_rank:
        return []  # the verdict says it
    if not before:
        return wrap(f"peak memory {peak} on the largest rank")
    change = format_percent(peak_change_ratio(before, ranks))
    sign = "" if change.startswith("-") else "+"
    return wrap(
        f"peak memory {peak} vs {format_bytes(peak_bytes(before))} on the largest rank, {sign}{change}"
    )


def runs(report: Report) -> list[str]:
    """This run, and its baseline."""
    timed = bool(report.time.per_rank)
    lines = wrap(describe_run(report.run, _steps(report.run, timed)), first="  run       ")
    if report.comparison and report.comparison.baseline_run:
        before = report.comparison.baseline_run
        lines += wrap(describe_run(before, _steps(before, timed)), first="  baseline  ")
    return lines


def _steps(run: RunFacts, timed: bool) -> str:
    """The steps that the report is about."""
    if not timed and run.memory_steps:
        return f"memory of {steps_text(run.memory_steps)}"
    return "from a snapshot" if run.source == "snapshot" else steps_text(run.steps)


def describe_run(run: RunFacts, steps: str) -> str:
    """A run in one line: ranks, backend, engine, steps."""
    ranks = f"{run.world_size} ranks" if run.world_size != 1 else "1 rank"
    missing = missing_ranks(run)
    if missing:
        names = ", ".join(str(rank) for rank in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        ranks = f"{len(run.ranks_loaded)} of {ranks} (missing: {names}{more})"
    stage = "" if run.stage is None else f" stage {run.stage}"
    where = run.device if run.backend in _NOT_SAID else f"{run.backend} on {run.device}"
    engine = [] if run.engine in _NOT_SAID else [f"{run.engine} engine{stage}"]
    return printable(f"{run.name}: {', '.join([ranks, where, *engine, steps])}")


def steps_text(steps: Sequence[int]) -> str:
    """``steps 3-10``, or how many and from where to where if some are left out."""
    if not steps:
        return "no timed step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    low, high = min(steps), max(steps)
    whole = len(set(steps)) == high - low + 1
    return f"steps {low}-{high}" if whole else f"{len(steps)} steps of {low}-{high}"


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
