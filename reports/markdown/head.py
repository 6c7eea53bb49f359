"""The head of a report in Markdown: verdict, what to try, the runs, what in them is simulated; the foot."""

from zprof.model.findings import Confidence
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.model.units import format_percent
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import bullets
from zprof.reports.shown.memory_names import largest_peak
from zprof.reports.shown.presenter import peak_change_ratio
from zprof.reports.shown.run_words import describe_run, reported_steps

_MARKS = {
    VerdictStatus.OK: "✓",
    VerdictStatus.SLOWER: "✗",
    VerdictStatus.RISK: "!",
    VerdictStatus.INCONCLUSIVE: "?",
}


def head(report: Report) -> list[str]:
    """The lines that a reader with ten seconds reads."""
    word = report.verdict.status.value.upper()
    said = report.verdict.sentence.removeprefix(word).strip()
    title = f"## {_MARKS[report.verdict.status]} {word}: {code(report.run.name)}"
    return [title, prose(said), *_try(report), bullets(_facts(report)), *modelled(report)]


def modelled(report: Report) -> list[str]:
    """What in the runs is simulated: never left out."""
    runs = [report.run, *([baseline] if (baseline := _baseline(report)) else [])]
    names = dict.fromkeys(name for run in runs for name in run.modelled)
    if not names:
        return []
    said = "; ".join(prose(name, 300) for name in names)
    return [f"> **MODELLED**: {said}. Simulated, not run: these times are the model's, not your hardware's."]


def foot(report: Report) -> str:
    """Which zprof, which run."""
    return f"---\nzprof {prose(report.zprof_version, 40)}, run {code(report.run.name)}"


def _try(report: Report) -> list[str]:
    """The first finding that is more than a guess."""
    sure = next((entry for entry in report.findings if entry.confidence is not Confidence.LOW), None)
    if sure is None:
        return []
    return [f"Try first: the fix of {code(sure.id, 20)} {code(sure.cause.value)} below."]


def _facts(report: Report) -> list[str]:
    facts = [f"peak memory {_peak(report)}"] if report.memory.per_rank else []
    facts.append(f"run {prose(describe_run(report.run, reported_steps(report, report.run)), 400)}")
    if before := _baseline(report):
        facts.append(f"baseline {prose(describe_run(before, reported_steps(report, before)), 400)}")
    return facts


def _peak(report: Report) -> str:
    ranks = report.memory.per_rank
    before = report.comparison.baseline_memory if report.comparison else ()
    peak = f"{largest_peak(ranks)} on the largest rank"
    if not before:
        return peak
    change = format_percent(peak_change_ratio(before, ranks))
    sign = "" if change.startswith("-") else "+"
    return f"{peak}, {sign}{change} against {largest_peak(before)}"


def _baseline(report: Report) -> RunFacts | None:
    return report.comparison.baseline_run if report.comparison else None
