"""Look for causes in a recording, optionally against a baseline, and build the report."""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, analyse, analyse_memory_only, analyse_time_only
from zprof.causes.cause import Cause, Need
from zprof.causes.registry import load_causes
from zprof.diagnosis.change import attribute_change, find_unclaimed_change
from zprof.diagnosis.claims import Unexplained, find_unexplained_loss
from zprof.diagnosis.ending_verdict import has_run_out_of_memory
from zprof.diagnosis.find_causes import find_causes
from zprof.diagnosis.verdict import judge, judge_memory
from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.hang import is_stuck
from zprof.model.report import Comparison, Report, Verdict
from zprof.model.time import WindowPolicy
from zprof.run.manifest import FLIGHT_RECORDER
from zprof.run.reader import Run
from zprof.version import __version__

if TYPE_CHECKING:
    from zprof.model.side_by_side import SideBySide


def diagnose(
    run: Run | RunAnalysis,
    baseline: Run | RunAnalysis | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> Report:
    """Build the full report on a run, compared with ``baseline`` if given.

    Args:
        run: The recording, or its analysis if that exists already.
        baseline: The run to compare with; the report then includes the change of each ledger term.
        expected_bus_bytes_per_s: The bus bandwidth that the link should give large messages.
        policy: The measured window: single steps, or the entire recording as one interval.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = _expect(_analyse_run(run, policy), expected_bus_bytes_per_s)
    baseline_analysis = _analyse_run(baseline, policy) if baseline is not None else None
    return _build_report(analysis, baseline_analysis, _list_needs(analysis))


def diagnose_side_by_side(
    a: Run,
    b: Run,
    *,
    analyses: tuple[RunAnalysis, RunAnalysis] | None = None,
    report: Report | None = None,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> "SideBySide":
    """Diagnose ``a`` by itself and ``b`` with ``a`` as its baseline, and pair the results number for number.

    ``analyses`` and ``report``, which is that on ``b``, if they exist already; for the rest see ``diagnose``.

    Raises:
        BadInput: A recording is damaged.
    """
    from zprof.analysis.compare.rows import pair_runs

    first, second = analyses or (analyse(a, policy), analyse(b, policy))
    after = report or diagnose(second, first, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    before = diagnose(first, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    return pair_runs((a, b), (first, second), (before, after))


def diagnose_time(
    run: Run | RunAnalysis,
    baseline: Run | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> Report:
    """Build the report on time only, without reading or judging memory. For the arguments see ``diagnose``.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = run if isinstance(run, RunAnalysis) else analyse_time_only(run, policy)
    baseline_analysis = analyse_time_only(baseline, policy) if baseline is not None else None
    analysis = _expect(analysis, expected_bus_bytes_per_s)
    return _build_report(analysis, baseline_analysis, _list_needs(analysis) - {Need.MEMORY})


def _build_report(
    analysis: RunAnalysis, baseline_analysis: RunAnalysis | None, has: frozenset[Need]
) -> Report:
    causes = _select_causes(analysis, has)
    findings, gaps = find_causes(causes, analysis, baseline_analysis)
    comparison = None
    if baseline_analysis is not None:
        from zprof.analysis.compare.differences import compare, find_comparison_gaps

        gaps += find_comparison_gaps(baseline_analysis, analysis)
        comparison = compare(baseline_analysis, analysis)
        if comparison is not None and comparison.step_time is not None:
            before, _ = find_causes(causes, baseline_analysis, None)
            lasting = {
                finding.cause
                for finding in findings
                if (is_lasting := causes[finding.cause].is_lasting) is not None
                and is_lasting(analysis, baseline_analysis)
            }
            findings, comparison = _account_for_change(findings, before, comparison, causes, lasting)
    unexplained = (
        Unexplained()
        if is_stuck(analysis.hang)
        else find_unexplained_loss(
            findings, causes, analysis.time.per_rank, analysis.time.collectives, analysis.time.steps
        )
    )
    verdict = judge(
        analysis.run,
        analysis.time,
        comparison,
        findings=findings,
        gaps=gaps,
        memory=analysis.memory,
        causes=causes,
        unexplained=unexplained,
        volume=analysis.volume,
        hang=analysis.hang,
        endings=analysis.endings,
    )
    report = _assemble_report(analysis, verdict, comparison, findings, gaps)
    return replace(report, unclaimed=unexplained.terms, unclaimed_rank=unexplained.rank)


def _list_needs(analysis: RunAnalysis) -> frozenset[Need]:
    """Return what a run has that causes need."""
    devices = {analysis.run.device, *(rank.device for rank in analysis.memory.per_rank)}
    is_on_device = devices != {"cpu"}
    return frozenset({Need.STEPS, Need.MEMORY} | ({Need.DEVICE} if is_on_device else set()))


def _select_causes(analysis: RunAnalysis, has: frozenset[Need]) -> Mapping[str, Cause]:
    """Return the causes to look for: what a step of a dead job costs is not why it is dead."""
    is_dump = analysis.run.source == FLIGHT_RECORDER  # it has neither times nor memory
    if not is_dump and not is_stuck(analysis.hang):
        return load_causes(has)
    hangs = load_causes(frozenset({Need.HANG}))
    if is_dump or not has_run_out_of_memory(analysis.gaps, analysis.memory):
        return hangs
    memory = load_causes(frozenset({Need.MEMORY}))
    return {**hangs, **{name: cause for name, cause in memory.items() if cause.is_failure}}


def _account_for_change(
    findings: Sequence[Finding],
    before: Sequence[Finding],
    comparison: Comparison,
    causes: Mapping[str, Cause],
    lasting: Set[str],
) -> tuple[tuple[Finding, ...], Comparison]:
    """Return the findings with what each adds to the step, and the comparison with what none claims."""
    from zprof.analysis.compare.differences import compute_ledger_delta  # with a baseline only

    delta = compute_ledger_delta(comparison)
    slower_ns = sum(delta.values())
    attributed = attribute_change(findings, before, slower_ns, causes, lasting)
    if slower_ns <= 0:
        return attributed, comparison
    return attributed, replace(comparison, unclaimed_ns=find_unclaimed_change(delta, attributed, causes))


def diagnose_memory(run: Run, baseline: Run | None = None) -> Report:
    """Build the report on memory only, without reading or judging time.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = analyse_memory_only(run)
    baseline_analysis = analyse_memory_only(baseline) if baseline is not None else None
    causes = load_causes(_list_needs(analysis) - {Need.STEPS})
    findings, gaps = find_causes(causes, analysis, baseline_analysis)
    comparison = None
    if baseline_analysis is not None:
        from zprof.analysis.compare.differences import compare, list_baseline_gaps

        gaps += list_baseline_gaps(baseline_analysis, analysis)
        comparison = compare(baseline_analysis, analysis)
    verdict = judge_memory(analysis.run, analysis.memory, findings, causes)
    return _assemble_report(analysis, verdict, comparison, findings, gaps)


def _assemble_report(
    analysis: RunAnalysis,
    verdict: Verdict,
    comparison: Comparison | None,
    findings: Sequence[Finding],
    gaps: Sequence[Gap],
) -> Report:
    return Report(
        zprof_version=__version__,
        verdict=verdict,
        run=analysis.run,
        time=analysis.time,
        memory=analysis.memory,
        volume=analysis.volume,
        comparison=comparison,
        findings=tuple(findings),
        gaps=tuple(gaps),
        hang=analysis.hang,
        endings=analysis.endings,
    )


def _expect(analysis: RunAnalysis, bus_bytes_per_s: float | None) -> RunAnalysis:
    return replace(analysis, expected_bus_bytes_per_s=bus_bytes_per_s) if bus_bytes_per_s else analysis


def _analyse_run(run: Run | RunAnalysis, policy: WindowPolicy) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run, policy)
