"""Run the rules on a recording, optionally against a baseline, and build the report."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.analysis.analysis import RunAnalysis, analyse, analyse_memory_alone, analyse_time_alone
from zprof.analysis.comparison import compare, find_comparison_gaps, list_baseline_gaps
from zprof.analysis.side_by_side import (
    build_finding_section,
    build_kernel_section,
    build_memory_section,
    build_time_sections,
    list_settings,
)
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.report import Comparison, Report, Verdict
from zprof.model.side_by_side import Section, SideBySide
from zprof.model.time import WindowPolicy
from zprof.rules.claims import find_unexplained_loss, split_savings
from zprof.rules.counterfactual.findings import find_by_replay
from zprof.rules.counterfactual.message_findings import judge_message_sizes
from zprof.rules.counterfactual.pricing import Replay, drop_explained, move_behind_stalls, price_finding
from zprof.rules.measurement_artifact import has_lost_events
from zprof.rules.registry import all_rules, memory_rules, time_rules
from zprof.rules.rule import Rule, group_gaps, wall_ns
from zprof.rules.saving_range import widen_by_noise
from zprof.rules.verdict import judge, judge_memory
from zprof.run.reader import Run
from zprof.version import __version__

#: These causes are proven by counts on each rank alone, so lost events leave their confidence as it is.
_COUNTED_CAUSES = frozenset(
    {
        Cause.ACCUMULATION_REGATHERS,
        Cause.ACCUMULATION_SYNCS,
        Cause.CHECKPOINT_REGATHERS,
        Cause.DATA_LOADER,
        Cause.FP32_GATHER,
        Cause.FP32_REDUCE,
        Cause.LAST_UNIT_REGATHERED,
        Cause.UNEVEN_SHAPES,
    }
)


def diagnose(
    run: Run | RunAnalysis,
    baseline: Run | RunAnalysis | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> Report:
    """Return the full report on a run, compared with ``baseline`` if given.

    Args:
        run: The recording, or its analysis if that exists already.
        baseline: The run to compare with; the ledger is then split from baseline to run.
        expected_bus_bytes_per_s: The bus bandwidth that the link should give large messages.
        policy: The measured window: single steps, or the whole recording as one stretch.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = _analyse_run(run, policy)
    before = _analyse_run(baseline, policy) if baseline is not None else None
    return _build_report(analysis, before, all_rules(expected_bus_bytes_per_s))


def diagnose_time(
    run: Run | RunAnalysis,
    baseline: Run | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> Report:
    """Return the report on time only, without reading or judging memory. For the arguments see ``diagnose``.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = run if isinstance(run, RunAnalysis) else analyse_time_alone(run, policy)
    before = analyse_time_alone(baseline, policy) if baseline is not None else None
    return _build_report(analysis, before, time_rules(expected_bus_bytes_per_s))


def _build_report(analysis: RunAnalysis, before: RunAnalysis | None, asked: Sequence[Rule]) -> Report:
    findings, gaps = _run_rules(asked, analysis, before)
    gaps += find_comparison_gaps(before, analysis) if before else ()
    comparison = compare(before, analysis) if before else None
    rest = find_unexplained_loss(findings, asked, analysis.time.per_rank, analysis.time.collectives)
    verdict = judge(
        analysis.run,
        analysis.time,
        comparison,
        findings=findings,
        gaps=gaps,
        memory=analysis.memory,
        asked=asked,
        unexplained=rest,
        volume=analysis.volume,
    )
    report = _assemble_report(analysis, verdict, comparison, findings, gaps)
    return replace(report, unclaimed=rest.terms, unclaimed_rank=rest.rank)


def diagnose_memory(run: Run, baseline: Run | None = None) -> Report:
    """Return the report on memory only, without reading or judging time.

    Raises:
        BadInput: A recording is damaged.
    """
    analysis = analyse_memory_alone(run)
    before = analyse_memory_alone(baseline) if baseline is not None else None
    findings, gaps = _run_rules(memory_rules(), analysis, before)
    gaps += list_baseline_gaps(before, analysis) if before else ()
    comparison = compare(before, analysis) if before else None
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
    )


def _analyse_run(run: Run | RunAnalysis, policy: WindowPolicy) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run, policy)


def _run_rules(
    asked: Sequence[Rule], analysis: RunAnalysis, baseline: RunAnalysis | None
) -> tuple[tuple[Finding, ...], list[Gap]]:
    """Return the ordered findings, no time claimed twice, and all gaps of the run, those of rules last."""
    checked = [rule.check(analysis, baseline) for rule in _applicable_rules(asked, analysis)]
    replay = Replay(analysis=analysis)
    answers, judged = judge_message_sizes(
        analysis, replay, [answer for answer in checked if answer is not None]
    )
    found_by_rules = [price_finding(replay, answer) for answer in answers if isinstance(answer, Finding)]
    priced = [*(each for each in found_by_rules if each is not None), *judged]
    more = find_by_replay(analysis, replay, priced)
    found = {finding.cause for finding in more}
    kept = [finding for finding in priced if finding.cause not in found]
    left = drop_explained(replay, [*kept, *more], asked)
    if has_lost_events(analysis):
        left = [_lower_confidence(finding) for finding in left]
    findings = [widen_by_noise(finding, analysis.time.step_noise_ns) for finding in left]
    untested = group_gaps([answer for answer in answers if isinstance(answer, Gap)])
    time = analysis.time
    apart = split_savings(findings, asked, time.per_rank, time.steps, replay.causes)
    return move_behind_stalls(replay, apart), [*analysis.gaps, *untested]


def _lower_confidence(finding: Finding) -> Finding:
    """Return the finding at low confidence if it rests on times between events, some of which are lost."""
    if finding.cause in _COUNTED_CAUSES or finding.saving_ns[1] <= 0:
        return finding
    return replace(finding, confidence=Confidence.LOW)


def _applicable_rules(asked: Sequence[Rule], analysis: RunAnalysis) -> Sequence[Rule]:
    """Return the rules to run. Rules that claim time, except those about memory, need a timed step.

    A missing step is reported once, not by each rule. A step of zero length comes from a damaged trace.
    """
    if wall_ns(analysis) > 0:
        return asked
    memory = {rule.cause for rule in memory_rules()}
    return [rule for rule in asked if not rule.claims or rule.cause in memory]


def diagnose_side_by_side(
    a: Run,
    b: Run,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> SideBySide:
    """Return ``a`` by itself next to ``b`` with ``a`` as its baseline.

    Raises:
        BadInput: A recording is damaged.
    """
    first, second = analyse(a, policy), analyse(b, policy)
    after = diagnose(second, first, expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    return pair_with_baseline(
        (a, first), (b, second), after, expected_bus_bytes_per_s=expected_bus_bytes_per_s
    )


def pair_with_baseline(
    a: tuple[Run, RunAnalysis],
    b: tuple[Run, RunAnalysis],
    after: Report,
    *,
    expected_bus_bytes_per_s: float | None = None,
) -> SideBySide:
    """Return the same for two analyzed runs; ``after`` is the report on ``b`` against ``a``."""
    before = diagnose(a[1], expected_bus_bytes_per_s=expected_bus_bytes_per_s)
    others = [
        build_memory_section(before, after),
        build_kernel_section(a[1], b[1]),
        build_finding_section(before, after),
    ]
    return SideBySide(
        zprof_version=after.zprof_version,
        a=before.run,
        b=after.run,
        verdict=after.verdict,
        comparison=after.comparison,
        sections=(*build_time_sections(before, after), *filter(_has_values, others)),
        settings=list_settings(a[0], b[0]),
    )


def _has_values(section: Section) -> bool:
    return any(row.a is not None or row.b is not None for row in section.rows)
