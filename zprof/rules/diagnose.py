"""Asks the rules and builds the report: verdict first, then what it rests on."""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.analysis.comparison import compare, comparison_gaps
from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.report import Report
from zprof.rules.claims import disjoint, ordered
from zprof.rules.registry import rules
from zprof.rules.rule import Rule, grouped
from zprof.rules.verdict import judge
from zprof.run.reader import Run
from zprof.version import __version__


def diagnose(
    run: Run | RunAnalysis,
    baseline: Run | RunAnalysis | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
) -> Report:
    """Say why a run is slow: the whole report, against ``baseline`` where one is given.

    Args:
        run: the recording, or its analysis where that is there already.
        baseline: what to compare with; the ledger is then split from baseline to run.
        expected_bus_bytes_per_s: bus bandwidth that the link should give large messages.

    Raises:
        BadInput: a recording is damaged.
    """
    analysis = _analysed(run)
    before = _analysed(baseline) if baseline is not None else None
    asked = rules(expected_bus_bytes_per_s)
    findings, gaps = _ask(asked, analysis, before)
    gaps = [*analysis.gaps, *gaps, *_comparison_gaps(before, analysis)]
    found = disjoint(ordered(findings), asked, analysis.time.per_rank)
    comparison = compare(before, analysis) if before else None
    return Report(
        zprof_version=__version__,
        verdict=judge(
            analysis.run, analysis.time, comparison, findings=found, gaps=gaps, memory=analysis.memory
        ),
        run=analysis.run,
        time=analysis.time,
        memory=analysis.memory,
        volume=analysis.volume,
        comparison=comparison,
        findings=found,
        gaps=tuple(gaps),
    )


def _analysed(run: Run | RunAnalysis) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run)


def _ask(
    asked: Sequence[Rule], analysis: RunAnalysis, baseline: RunAnalysis | None
) -> tuple[list[Finding], list[Gap]]:
    answers = [rule.check(analysis, baseline) for rule in asked]
    findings = [answer for answer in answers if isinstance(answer, Finding)]
    return findings, grouped([answer for answer in answers if isinstance(answer, Gap)])


def _comparison_gaps(before: RunAnalysis | None, analysis: RunAnalysis) -> tuple[Gap, ...]:
    return comparison_gaps(before, analysis) if before else ()
