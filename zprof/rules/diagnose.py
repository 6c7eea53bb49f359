"""Run the rules on a recording, optionally against a baseline, and build the report."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, analyse, analyse_memory_only, analyse_time_only
from zprof.model.findings import Cause, Finding
from zprof.model.gaps import Gap
from zprof.model.hang import is_stuck
from zprof.model.report import Comparison, Report, Verdict
from zprof.model.time import WindowPolicy
from zprof.rules.change_claims import attribute_change, find_unclaimed_change
from zprof.rules.claims import Unexplained, find_unexplained_loss
from zprof.rules.compute.blocking_sync import is_waiting_as_often
from zprof.rules.compute.data_loader import is_loading_as_long
from zprof.rules.ending_verdict import has_run_out_of_memory
from zprof.rules.hang.stuck_job import hang_rules
from zprof.rules.make_findings import make_findings
from zprof.rules.registry import all_rules, memory_rules, time_rules
from zprof.rules.rule import Rule
from zprof.rules.verdict import judge, judge_memory
from zprof.run.manifest import FLIGHT_RECORDER
from zprof.run.reader import Run
from zprof.version import __version__

if TYPE_CHECKING:
    from zprof.model.side_by_side import SideBySide

#: Causes that may be in the baseline at no cost, and what tells that there is no more of them now.
_LASTING: Mapping[Cause, Callable[[RunAnalysis, RunAnalysis], bool]] = {
    Cause.DATA_LOADER: is_loading_as_long,
    Cause.BLOCKING_SYNC: is_waiting_as_often,
}


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
    analysis = _analyse_run(run, policy)
    baseline_analysis = _analyse_run(baseline, policy) if baseline is not None else None
    return _build_report(analysis, baseline_analysis, all_rules(expected_bus_bytes_per_s))


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
    return _build_report(analysis, baseline_analysis, time_rules(expected_bus_bytes_per_s))


def _build_report(
    analysis: RunAnalysis, baseline_analysis: RunAnalysis | None, rules: Sequence[Rule]
) -> Report:
    rules = _select_rules(analysis, rules)
    findings, gaps = make_findings(rules, analysis, baseline_analysis)
    comparison = None
    if baseline_analysis is not None:
        from zprof.analysis.compare.differences import compare, find_comparison_gaps

        gaps += find_comparison_gaps(baseline_analysis, analysis)
        comparison = compare(baseline_analysis, analysis)
        if comparison is not None and comparison.step_time is not None:
            before, _ = make_findings(rules, baseline_analysis, None)
            found = _LASTING.keys() & {finding.cause for finding in findings}
            lasting = {cause for cause in found if _LASTING[cause](analysis, baseline_analysis)}
            findings, comparison = _account_for_change(findings, before, comparison, rules, lasting)
    unexplained = (
        Unexplained()
        if is_stuck(analysis.hang)
        else find_unexplained_loss(
            findings, rules, analysis.time.per_rank, analysis.time.collectives, analysis.time.steps
        )
    )
    verdict = judge(
        analysis.run,
        analysis.time,
        comparison,
        findings=findings,
        gaps=gaps,
        memory=analysis.memory,
        rules=rules,
        unexplained=unexplained,
        volume=analysis.volume,
        hang=analysis.hang,
        endings=analysis.endings,
    )
    report = _assemble_report(analysis, verdict, comparison, findings, gaps)
    return replace(report, unclaimed=unexplained.terms, unclaimed_rank=unexplained.rank)


def _select_rules(analysis: RunAnalysis, rules: Sequence[Rule]) -> Sequence[Rule]:
    """Return the rules to run: what a step of a dead job costs is not why it is dead."""
    if analysis.run.source == FLIGHT_RECORDER:
        return hang_rules()  # dumps have neither times nor memory that others could test
    if not is_stuck(analysis.hang):
        return rules
    if not has_run_out_of_memory(analysis.gaps, analysis.memory):
        return hang_rules()
    return (*hang_rules(), *(rule for rule in memory_rules() if rule.cause is Cause.OUT_OF_MEMORY))


def _account_for_change(
    findings: Sequence[Finding],
    before: Sequence[Finding],
    comparison: Comparison,
    rules: Sequence[Rule],
    lasting: Set[Cause],
) -> tuple[tuple[Finding, ...], Comparison]:
    """Return the findings with what each adds to the step, and the comparison with what none claims."""
    from zprof.analysis.compare.differences import compute_ledger_delta  # with a baseline only

    delta = compute_ledger_delta(comparison)
    slower_ns = sum(delta.values())
    attributed = attribute_change(findings, before, slower_ns, lasting)
    if slower_ns <= 0:
        return attributed, comparison
    return attributed, replace(comparison, unclaimed_ns=find_unclaimed_change(delta, attributed, rules))


def diagnose_memory(run: Run, baseline: Run | None = None) -> Report:
    """Build the report on memory only, without reading or judging time.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = analyse_memory_only(run)
    baseline_analysis = analyse_memory_only(baseline) if baseline is not None else None
    findings, gaps = make_findings(memory_rules(), analysis, baseline_analysis)
    comparison = None
    if baseline_analysis is not None:
        from zprof.analysis.compare.differences import compare, list_baseline_gaps

        gaps += list_baseline_gaps(baseline_analysis, analysis)
        comparison = compare(baseline_analysis, analysis)
    verdict = judge_memory(analysis.run, analysis.memory, findings)
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


def _analyse_run(run: Run | RunAnalysis, policy: WindowPolicy) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run, policy)
