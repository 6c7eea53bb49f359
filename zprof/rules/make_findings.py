"""Make the findings of a run in one pass: find, price, claim.

A rule finds its cause and says what it costs at most. The saving is that of the step played with the fix, and
causes that only the played step shows are added. Then each nanosecond is claimed once. What changes a range
after that leaves a :class:`~zprof.model.findings.SavingNote` on the finding.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, SavingNote, Severity
from zprof.model.gaps import Gap, GapKind
from zprof.rules.claims import split_savings
from zprof.rules.compute.comm_slows_compute import state_hidden_slowdown
from zprof.rules.compute.idle_time import is_short_of_processors
from zprof.rules.counterfactual.findings import find_by_replay
from zprof.rules.counterfactual.message_findings import judge_message_sizes
from zprof.rules.measurement_artifact import do_recordings_match, has_lost_events
from zprof.rules.price_findings import drop_explained, move_after_stalls, price_finding
from zprof.rules.registry import memory_rules
from zprof.rules.rule import Rule, change_saving, group_gaps, mean_wall_ns, rate_severity
from zprof.step.predict import PlayedStep

#: These causes are proven by counts on each rank alone, so lost events do not lower their confidence.
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

#: These causes rest on how fast transfers or kernels were, which on CPU ranks depends on who else runs there.
_SPEED_CAUSES = frozenset(
    {
        Cause.COMM_SLOWS_COMPUTE,
        Cause.LATENCY_BOUND_COLLECTIVES,
        Cause.LOW_BUS_BANDWIDTH,
        Cause.SHARDING_SPANS_NODES,
        Cause.UNITS_TOO_SMALL,
    }
)
#: Maximum share of a saving by which the noise of the run widens its range.
_MAX_WIDENING_RATIO = 0.25
#: Above this ratio of the ends of a range, it does not say what the fix is worth.
_MAX_SURE_SPAN = 4.0
_SEVERITY_RANK = {Severity.LOW: 0, Severity.MEDIUM: 1, Severity.HIGH: 2}


def make_findings(
    rules: Sequence[Rule], analysis: RunAnalysis, baseline: RunAnalysis | None
) -> tuple[tuple[Finding, ...], list[Gap]]:
    """Return the ordered findings, with no time claimed twice, and all gaps of the run, rules' gaps last."""
    answers = [rule.check(analysis, baseline) for rule in _select_applicable(rules, analysis)]
    step = PlayedStep(analysis=analysis)
    priced, played, gaps = _price_causes(step, [answer for answer in answers if answer is not None], rules)
    findings = _claim_time(step, _limit_confidence(analysis, priced), played, rules)
    return findings, [*analysis.gaps, *group_gaps(gaps)]


def _select_applicable(rules: Sequence[Rule], analysis: RunAnalysis) -> Sequence[Rule]:
    """Select the rules to run. Rules that claim time, except those about memory, need a timed step.

    A missing step is reported once, not by each rule. A step of zero length comes from a damaged trace.
    """
    if mean_wall_ns(analysis) > 0:
        return rules
    memory_causes = {rule.cause for rule in memory_rules()}
    return [rule for rule in rules if not rule.claims or rule.cause in memory_causes]


def _price_causes(
    step: PlayedStep, answers: Sequence[Finding | Gap], rules: Sequence[Rule]
) -> tuple[list[Finding], frozenset[Cause], list[Gap]]:
    """Return the findings with their savings, the causes that were played, and the gaps that remain.

    Findings of the played step replace those of rules of low confidence; effects of another cause are
    dropped.
    """
    rest, about_sizes = judge_message_sizes(step.analysis, step, answers)
    own = [price_finding(step, answer) for answer in rest if isinstance(answer, Finding)]
    known = [*(each.finding for each in own if each.finding is not None), *about_sizes]
    added = find_by_replay(step.analysis, step, known)
    added_causes = {finding.cause for finding in added}
    kept = [finding for finding in known if finding.cause not in added_causes]
    played = {each.finding.cause for each in own if each.finding is not None and each.is_played}
    return (
        drop_explained(step, [*kept, *added], rules),
        frozenset(played | added_causes | {finding.cause for finding in about_sizes}),
        [answer for answer in rest if isinstance(answer, Gap)],
    )


def _limit_confidence(analysis: RunAnalysis, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with low confidence in savings of time that the recording cannot prove.

    Lost events change times between events. On a CPU with too few processors, speeds depend on who else runs.
    Where the ends of steps are uncertain, so is what a step has. Where collectives do not match, nothing is
    certain.
    """
    if any(gap.kind is GapKind.STEP_BOUNDARIES for gap in analysis.gaps):
        return [
            replace(each, confidence=Confidence.LOW) if each.saving_ns[1] > 0 or each.saving_bytes else each
            for each in findings
        ]
    if not do_recordings_match(analysis):
        findings = [
            replace(each, confidence=Confidence.MEDIUM)
            if each.confidence is Confidence.HIGH and each.saving_ns[1] > 0
            else each
            for each in findings
        ]
    is_incomplete = has_lost_events(analysis)
    is_crowded = is_short_of_processors(analysis) and not analysis.run.modelled

    def is_uncertain(finding: Finding) -> bool:
        cause = finding.cause
        return finding.saving_ns[1] > 0 and (
            (is_incomplete and cause not in _COUNTED_CAUSES) or (is_crowded and cause in _SPEED_CAUSES)
        )

    return [replace(each, confidence=Confidence.LOW) if is_uncertain(each) else each for each in findings]


def _claim_time(
    step: PlayedStep, findings: Sequence[Finding], played: frozenset[Cause], rules: Sequence[Rule]
) -> tuple[Finding, ...]:
    """Return the findings with their final ranges and ratings, the first to fix first."""
    time, wall_ns = step.analysis.time, mean_wall_ns(step.analysis)
    widened = [widen_by_noise(finding, time.step_noise_ns) for finding in findings]
    claimed = split_savings(widened, rules, time.per_rank, time.steps, played)
    stated = [state_hidden_slowdown(step.analysis, finding) for finding in claimed]
    return move_after_stalls(step, [rate_by_range(finding, wall_ns) for finding in stated])


def widen_by_noise(finding: Finding, step_noise_ns: int | None) -> Finding:
    """Return the finding with its saving range widened by the noise of the run, by 25 % at most."""
    low, high = finding.saving_ns
    noise = step_noise_ns or 0
    saving = (low - min(noise, _MAX_WIDENING_RATIO * low), high + min(noise, _MAX_WIDENING_RATIO * high))
    return change_saving(finding, saving, SavingNote.STEP_NOISE)


def rate_by_range(finding: Finding, wall_ns: float) -> Finding:
    """Return the finding with no more severity than its saving has, and no more confidence than its range.

    A finding without a saving of time is returned unchanged.
    """
    low, high = finding.saving_ns
    if high <= 0:
        return finding
    is_wide = high > _MAX_SURE_SPAN * low and finding.confidence is Confidence.HIGH
    severity = finding.severity
    if finding.saving_bytes is None:
        severity = min(severity, rate_severity(high, wall_ns), key=_SEVERITY_RANK.__getitem__)
    return replace(
        finding, severity=severity, confidence=Confidence.MEDIUM if is_wide else finding.confidence
    )
