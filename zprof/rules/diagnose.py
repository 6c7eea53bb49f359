"""Asks the rules and builds the report: verdict first, then what it rests on."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.analysis.analysis import RunAnalysis, analyse, analyse_memory_alone, analyse_time_alone
from zprof.analysis.comparison import baseline_gaps, compare, comparison_gaps
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.report import Comparison, Report, Verdict
from zprof.model.time import WindowPolicy
from zprof.rules.claims import disjoint
from zprof.rules.measurement.measurement_artifact import has_lost_events
from zprof.rules.noise import widened
from zprof.rules.pricing import Replay, behind_stalls, drop_explained, price
from zprof.rules.registry import memory_rules, rules, time_rules
from zprof.rules.replayed import replayed_findings
from zprof.rules.replayed_sizes import judge_sizes
from zprof.rules.rows import wall_ns
from zprof.rules.rule import Rule, grouped
from zprof.rules.unexplained import unexplained_loss
from zprof.rules.verdict import judge, judge_memory
from zprof.run.reader import Run
from zprof.version import __version__

#: What these do is counted on each rank by itself.
_COUNTED = frozenset(
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
    """Say why a run is slow: the whole report, against ``baseline`` where one is given.

    Args:
        run: the recording, or its analysis where that is there already.
        baseline: what to compare with; the ledger is then split from baseline to run.
        expected_bus_bytes_per_s: bus bandwidth that the link should give large messages.
        policy: what is measured: the steps, or all of the recording as one stretch.

    Raises:
        BadInput: a recording is damaged.
    """
    analysis = _analysed(run, policy)
    before = _analysed(baseline, policy) if baseline is not None else None
    return _judged(analysis, before, rules(expected_bus_bytes_per_s))


def diagnose_time(
    run: Run | RunAnalysis,
    baseline: Run | None = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: WindowPolicy = WindowPolicy.STEP,
) -> Report:
    """The time side of the report alone: memory is neither read nor judged; arguments as of ``diagnose``.

    Raises:
        BadInput: a recording is damaged.
    """
    analysis = run if isinstance(run, RunAnalysis) else analyse_time_alone(run, policy)
    before = analyse_time_alone(baseline, policy) if baseline is not None else None
    return _judged(analysis, before, time_rules(expected_bus_bytes_per_s))


def _judged(analysis: RunAnalysis, before: RunAnalysis | None, asked: Sequence[Rule]) -> Report:
    findings, gaps = _ask(asked, analysis, before)
    gaps += comparison_gaps(before, analysis) if before else ()
    comparison = compare(before, analysis) if before else None
    rest = unexplained_loss(findings, asked, analysis.time.per_rank, analysis.time.collectives)
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
    report = _report(analysis, verdict, comparison, findings, gaps)
    return replace(report, unclaimed=rest.terms, unclaimed_rank=rest.rank)


def diagnose_memory(run: Run, baseline: Run | None = None) -> Report:
    """The memory side of the report alone: time is neither read nor judged.

    Raises:
        BadInput: a recording is damaged.
    """
    analysis = analyse_memory_alone(run)
    before = analyse_memory_alone(baseline) if baseline is not None else None
    findings, gaps = _ask(memory_rules(), analysis, before)
    gaps += baseline_gaps(before, analysis) if before else ()
    comparison = compare(before, analysis) if before else None
    verdict = judge_memory(analysis.run, analysis.memory, findings)
    return _report(analysis, verdict, comparison, findings, gaps)


def _report(
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


def _analysed(run: Run | RunAnalysis, policy: WindowPolicy) -> RunAnalysis:
    return run if isinstance(run, RunAnalysis) else analyse(run, policy)


def _ask(
    asked: Sequence[Rule], analysis: RunAnalysis, baseline: RunAnalysis | None
) -> tuple[tuple[Finding, ...], list[Gap]]:
    """Findings in order, no time claimed twice; all gaps of the run, those of the rules last."""
    checked = [rule.check(analysis, baseline) for rule in _askable(asked, analysis)]
    replay = Replay(analysis=analysis)
    answers, judged = judge_sizes(analysis, replay, [answer for answer in checked if answer is not None])
    found_by_rules = [price(replay, answer) for answer in answers if isinstance(answer, Finding)]
    priced = [*(each for each in found_by_rules if each is not None), *judged]
    more = replayed_findings(analysis, replay, priced)
    found = {finding.cause for finding in more}
    kept = [finding for finding in priced if finding.cause not in found]
    left = drop_explained(replay, [*kept, *more], asked)
    if has_lost_events(analysis):
        left = [_unsure(finding) for finding in left]
    findings = [widened(finding, analysis.time.step_noise_ns) for finding in left]
    untested = grouped([answer for answer in answers if isinstance(answer, Gap)])
    time = analysis.time
    apart = disjoint(findings, asked, time.per_rank, time.steps, replay.causes)
    return behind_stalls(replay, apart), [*analysis.gaps, *untested]


def _unsure(finding: Finding) -> Finding:
    """Return the finding as a note if it rests on times between events, of which some are lost."""
    if finding.cause in _COUNTED or finding.saving_ns[1] <= 0:
        return finding
    return replace(finding, confidence=Confidence.LOW)


def _askable(asked: Sequence[Rule], analysis: RunAnalysis) -> Sequence[Rule]:
    """Without a timed step there is no time to claim; that none was timed is said once, and not by each.

    A step of no length is one of a damaged trace.
    """
    if wall_ns(analysis) > 0:
        return asked
    memory = {rule.cause for rule in memory_rules()}
    return [rule for rule in asked if not rule.claims or rule.cause in memory]
