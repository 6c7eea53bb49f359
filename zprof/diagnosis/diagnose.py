"""Look for causes in a recording, optionally against a baseline, and build the report."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, analyse, analyse_memory_only, analyse_time_only
from zprof.causes import load_causes
from zprof.causes.cause import Cause, Need
from zprof.diagnosis.claims import find_unexplained_loss
from zprof.diagnosis.find_causes import CauseProgress, find_causes
from zprof.diagnosis.verdict import Case, has_run_out_of_memory, judge, judge_memory
from zprof.model.hang import is_stuck
from zprof.model.report import Report, Verdict, VerdictStatus
from zprof.model.time import WindowPolicy
from zprof.run.manifest import FLIGHT_RECORDER, NCCL_INSPECTOR, OPERATION_TIMELINE
from zprof.run.reader import Run
from zprof.version import __version__

if TYPE_CHECKING:
    from zprof.model.comparison import SideBySide


def diagnose(
    run: Run | RunAnalysis,
    baseline: Run | RunAnalysis | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
    progress: CauseProgress | None = None,
) -> Report:
    """Build the full report on a run, compared with ``baseline`` if given.

    Args:
        run: The recording, or its analysis if that exists already.
        baseline: The run to compare with; the report then includes the change of each ledger term.
        expected_bus_bytes_per_s: The bus bandwidth that large messages should reach on the link.
        policy: The measured window: single steps, or the entire recording as one interval.
        progress: Called with the number of causes looked for so far, and of all.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = _analyse_run(run, policy)
    baseline_analysis = _analyse_run(baseline, policy) if baseline is not None else None
    needs = _list_needs(analysis)
    return _build_report(analysis, baseline_analysis, needs, expected_bus_bytes_per_s, progress)


def report_numbers(analysis: RunAnalysis) -> Report:
    """Build the report on a run in which no cause has been looked for: its numbers and gaps, no findings."""
    case = _make_case(analysis, causes={}, findings=(), gaps=analysis.gaps, comparison=None)
    return _make_report(case, Verdict(status=VerdictStatus.INCONCLUSIVE, sentence="no cause was looked for"))


def diagnose_side_by_side(
    a: Run,
    b: Run,
    *,
    analyses: tuple[RunAnalysis, RunAnalysis] | None = None,
    report: Report | None = None,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> "SideBySide":
    """Diagnose ``a`` alone and ``b`` with ``a`` as its baseline, and pair the results number by number.

    ``analyses`` and ``report`` (on ``b``) are passed if they exist already; for the rest see ``diagnose``.

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
    has = _list_needs(analysis) - {Need.MEMORY}
    return _build_report(analysis, baseline_analysis, has, expected_bus_bytes_per_s)


def _build_report(
    analysis: RunAnalysis,
    baseline: RunAnalysis | None,
    has: frozenset[Need],
    expected_bus_bytes_per_s: float | None,
    progress: CauseProgress | None = None,
) -> Report:
    if expected_bus_bytes_per_s is not None:
        analysis = replace(analysis, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
        if baseline is not None:
            baseline = replace(baseline, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    causes = _select_causes(analysis, has)
    findings, gaps = find_causes(causes, analysis, baseline, progress)
    comparison = None
    if baseline is not None:
        from zprof.analysis.compare.differences import compare, find_comparison_gaps
        from zprof.diagnosis.change import account_for_change, is_lasting

        gaps += find_comparison_gaps(baseline, analysis)
        comparison = compare(baseline, analysis)
        if comparison is not None and comparison.step_time is not None:
            before, _ = find_causes(causes, baseline, None)
            found = {finding.cause for finding in findings}
            lasting = {name for name in found if is_lasting(causes[name], analysis, baseline)}
            findings, comparison = account_for_change(findings, before, comparison, causes, lasting)
    case = _make_case(analysis, causes=causes, findings=findings, gaps=gaps, comparison=comparison)
    if not is_stuck(analysis.hang):
        time = analysis.time
        rest = find_unexplained_loss(
            findings, causes, time.per_rank, time.collectives, time.steps, time.schedule_ratio
        )
        case = replace(case, unexplained=rest)
    return _make_report(case, judge(case))


def _list_needs(analysis: RunAnalysis) -> frozenset[Need]:
    """Return the needs that a run meets; for times and memory, each cause reports what is missing."""
    devices = {analysis.run.device, *(rank.device for rank in analysis.memory.per_rank)}
    is_on_device = devices != {"cpu"}
    return frozenset({Need.STEPS, Need.MEMORY} | ({Need.DEVICE} if is_on_device else set()))


def _select_causes(analysis: RunAnalysis, has: frozenset[Need]) -> Mapping[str, Cause]:
    """Return the causes to look for: the cost of a step does not explain why a job is dead."""
    if analysis.run.source in (OPERATION_TIMELINE, NCCL_INSPECTOR):
        return {}  # causes read kernels, collectives and memory
    is_dump = analysis.run.source == FLIGHT_RECORDER  # a dump has neither times nor memory
    if not is_dump and not is_stuck(analysis.hang):
        return load_causes(has)
    hangs = load_causes(frozenset({Need.HANG}))
    if is_dump or not has_run_out_of_memory(analysis.gaps, analysis.memory):
        return hangs
    memory = load_causes(frozenset({Need.MEMORY}))
    return {**hangs, **{name: cause for name, cause in memory.items() if cause.is_failure}}


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
    case = _make_case(analysis, causes=causes, findings=findings, gaps=gaps, comparison=comparison)
    return _make_report(case, judge_memory(case))


def _make_case(analysis: RunAnalysis, **more: Any) -> Case:
    return Case(
        run=analysis.run,
        time=analysis.time,
        memory=analysis.memory,
        volume=analysis.volume,
        hang=analysis.hang,
        endings=analysis.endings,
        **more,
    )


def _make_report(case: Case, verdict: Verdict) -> Report:
    return Report(
        zprof_version=__version__,
        verdict=verdict,
        run=case.run,
        time=case.time,
        memory=case.memory,
        volume=case.volume,
        comparison=case.comparison,
        findings=tuple(case.findings),
        gaps=tuple(case.gaps),
        hang=case.hang,
        endings=tuple(case.endings),
        unclaimed=case.unexplained.terms,
        unclaimed_rank=case.unexplained.rank,
    )


def _analyse_run(run: Run | RunAnalysis, policy: WindowPolicy) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run, policy)
