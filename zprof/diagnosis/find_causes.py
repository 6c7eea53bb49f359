"""Find the causes in a run: look for signs, play the step without each cause, claim the time once.

A cause is found by its signs in the recording, which bound its cost, or in the measured step, if the step is
shorter without it. The saving is that of the step played with the fix. Every later change of the range leaves
a :class:`~zprof.model.findings.SavingNote` on the finding.

In the step with the fix (:mod:`zprof.step.play`) late launches move forward, dependent work follows, and
hidden work may become exposed. A finding keeps the saving of its signs if its cause has no edit, or if
nothing of the edit can be played.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    do_recordings_match,
    has_lost_events,
    make_fact,
    mean_wall_ns,
)
from zprof.analysis.time.host_time import is_short_of_processors
from zprof.causes.cause import (
    MIN_GAIN_RATIO,
    Absent,
    Cause,
    Need,
    Observation,
    Proof,
    Sign,
    Signal,
    make_finding,
    rate_severity,
    write_evidence,
)
from zprof.diagnosis.claims import change_saving, split_savings
from zprof.model.findings import LEVELS, Confidence, Finding, SavingNote, Severity, cap_confidence
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap, GapKind
from zprof.step.edits import changes_graph
from zprof.step.play import PlayedStep, widen_gains
from zprof.step.tasks import Graph

#: Minimum gain as a share of the step, and minimum steps, for high confidence in a cause that only the step
#: shows.
_SURE_GAIN_RATIO, _SURE_STEPS = 0.05, 3
#: Maximum share of a saving by which the noise of the run widens its range.
_MAX_WIDENING_RATIO = 0.25
#: Above this ratio of its ends, a range does not show what the fix is worth.
_MAX_SURE_SPAN = 4.0
#: A gain below this share of the step means that the cause costs nothing.
_NEGLIGIBLE_RATIO = 0.01


#: Called before each cause with the number of causes looked for so far, and of all.
CauseProgress = Callable[[int, int], None]


def find_causes(
    causes: Mapping[str, Cause],
    analysis: RunAnalysis,
    baseline: RunAnalysis | None,
    progress: CauseProgress | None = None,
) -> tuple[tuple[Finding, ...], list[Gap]]:
    """Return the ordered findings, no time claimed twice, and all gaps of the run, untested causes last."""
    step = PlayedStep(analysis=analysis)
    if progress is not None:
        progress(0, len(causes))
    answers = {
        cause.name: answer
        for cause in _select_applicable(causes.values(), analysis)
        if (answer := ask(cause, analysis, baseline)) is not None
    }
    priced, played = _price_answers(step, answers, causes, progress)
    sure = _limit_confidence(analysis, priced, causes)
    widened = [widen_by_noise(finding, analysis.time.step_noise_ns) for finding in sure]
    claimed = split_savings(widened, causes, analysis.time.per_rank, analysis.time.steps, played)
    stated = [_state_rest(analysis, finding, causes[finding.cause]) for finding in claimed]
    rated = [rate_by_range(finding, mean_wall_ns(analysis)) for finding in stated]
    return move_after_stalls(step, rated, causes), [*analysis.gaps, *_list_gaps(answers)]


def _select_applicable(causes: Iterable[Cause], analysis: RunAnalysis) -> Iterable[Cause]:
    """Select the causes to look for. Causes that claim time, except memory causes, need a timed step.

    A missing step is reported once, not by each cause. A step of zero length comes from a damaged trace.
    """
    if mean_wall_ns(analysis) > 0:
        return causes
    return [cause for cause in causes if not cause.terms or Need.STEPS not in cause.needs]


def ask(
    cause: Cause, analysis: RunAnalysis, baseline: RunAnalysis | None = None
) -> Finding | Untested | None:
    """Return the finding of a cause by its signs, or what is missing to test it, or None without signs."""
    answer = cause.find_signs(analysis, baseline) if cause.find_signs is not None else None
    return make_finding(analysis, cause, answer) if isinstance(answer, Signal) else answer


def _list_gaps(answers: Mapping[str, Finding | Untested]) -> Iterator[Gap]:
    """Yield one gap for all causes that are untested for the same reason."""
    names: dict[Untested, list[str]] = {}
    for name, answer in answers.items():
        if isinstance(answer, Untested):
            names.setdefault(answer, []).append(name)
    for missing, untested in names.items():
        key = "causes_not_tested" if len(untested) > 1 else "cause_not_tested"
        gap = make_gap(key, causes=untested, reason=missing.reason, remedy=missing.remedy)
        yield replace(gap, kind=missing.kind)


def _price_answers(
    step: PlayedStep,
    answers: dict[str, Finding | Untested],
    causes: Mapping[str, Cause],
    progress: CauseProgress | None,
) -> tuple[list[Finding], frozenset[str]]:
    """Return the findings with their savings, and the causes that were played.

    If the measured step decides, its answer replaces that of the signs, also in ``answers``. Otherwise it
    adds causes with no or insufficient signs; effects of another cause are dropped.
    """
    decided = _decide_by_step(step, answers, causes)
    signs = [each for each in answers.values() if isinstance(each, Finding)]
    priced = [price_finding(step, finding, causes[finding.cause]) for finding in signs]
    known = [*(finding for finding, _ in priced if finding is not None), *decided.values()]
    sure = {finding.cause for finding in known if finding.confidence is not Confidence.LOW}
    added = {}
    for number, cause in enumerate(causes.values()):
        if progress is not None:
            progress(number, len(causes))
        if cause.name in sure or cause.outranks_signs:
            continue
        if isinstance(seen := look_at_step(step, cause), Finding):
            added[cause.name] = seen
    kept = [finding for finding in known if finding.cause not in added]
    played = {finding.cause for finding, is_played in priced if finding is not None and is_played}
    findings = drop_explained(step, [*kept, *added.values()], causes)
    return findings, frozenset(played | added.keys() | decided.keys())


def _decide_by_step(
    step: PlayedStep, answers: dict[str, Finding | Untested], causes: Mapping[str, Cause]
) -> dict[str, Finding]:
    """Return the findings of causes that the measured step decides; drop the answers of their signs.

    A sign that is also produced by a cause found above low confidence is no longer evidence.
    """
    seen = {
        cause.name: answer
        for cause in causes.values()
        if cause.outranks_signs and (answer := look_at_step(step, cause)) is not None
    }
    for name in seen:
        answers.pop(name, None)
    decided = {name: answer for name, answer in seen.items() if isinstance(answer, Finding)}
    sure = [
        causes[finding.cause]
        for finding in (*decided.values(), *answers.values())
        if isinstance(finding, Finding) and finding.confidence is not Confidence.LOW
    ]
    return {
        name: finding
        for name, finding in decided.items()
        if not any(other.outranks_signs and other.explains(causes[name]) for other in sure)
    }


def look_at_step(step: PlayedStep, cause: Cause) -> Finding | Absent | None:
    """Return the finding of a cause without which the step is shorter; None if the step shows nothing."""
    if cause.look_at_step is None or step.graph is None:
        return None
    if not (step.has_kernels or cause.is_seen_in_spans):
        return None
    if cause.is_of_host and step.max_host_gain_ns < MIN_GAIN_RATIO * step.step_ns:
        return Absent()
    seen = cause.look_at_step(step)
    if not isinstance(seen, Observation):
        return seen
    unlocated = replace(seen, locate=lambda: None)  # the line is located only for findings
    played = (
        list_gains(step, make_finding(step.analysis, cause, unlocated), cause)
        if seen.changed is None
        else [gain for changed in seen.changed if (gain := step.gain_ns(changed)) is not None]
    )
    gains = [min(gain, seen.max_saving_ns) for gain in played]
    if not gains:
        return None
    if max(gains) < seen.min_ratio * step.step_ns:
        return Absent()
    low, high = widen_gains(min(gains) * (1 - seen.lowered_ratio), max(gains), step.step_ns)
    is_sure = low >= _SURE_GAIN_RATIO * step.step_ns and step.graph.steps >= _SURE_STEPS
    # one step cannot show that anything recurs
    is_note = step.graph.steps == 1 or seen.is_doubtful or low < seen.note_below_ratio * step.step_ns
    sure = Confidence.HIGH if is_sure else Confidence.MEDIUM
    signal = replace(
        seen,
        confidence=Confidence.LOW if is_note else cap_confidence(sure, seen.max_confidence),
        facts=[*seen.facts, make_fact("replayed_saving", max(gains), rank=seen.gain_rank)],
        saving_ns=(low, min(high, seen.max_saving_ns)),
        severity=rate_severity(min(high, seen.max_saving_ns), step.step_ns),
    )
    return make_finding(step.analysis, cause, signal)


def _limit_confidence(
    analysis: RunAnalysis, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> list[Finding]:
    """Return the findings, with low confidence in savings of time that the recording cannot prove.

    Lost events change times between events. With too few processors for CPU ranks, speeds depend on the
    machine's load. If the ends of steps are uncertain, so is the content of a step. If collectives do not
    match, nothing is certain.
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
        proof = causes[finding.cause].proof
        return finding.saving_ns[1] > 0 and (
            (is_incomplete and proof is not Proof.COUNTS) or (is_crowded and proof is Proof.SPEEDS)
        )

    return [replace(each, confidence=Confidence.LOW) if is_uncertain(each) else each for each in findings]


def _state_rest(analysis: RunAnalysis, finding: Finding, cause: Cause) -> Finding:
    """Return the finding with the facts known only from its final range."""
    if cause.state_rest is None:
        return finding
    facts = cause.state_rest(analysis, finding)
    rest = (write_evidence(cause, fact, analysis.time) for fact in facts)
    return replace(finding, evidence=(*finding.evidence, *rest))


def widen_by_noise(finding: Finding, step_noise_ns: int | None) -> Finding:
    """Return the finding with its saving range widened by the noise of the run, by 25 % at most."""
    low, high = finding.saving_ns
    noise = step_noise_ns or 0
    saving = (low - min(noise, _MAX_WIDENING_RATIO * low), high + min(noise, _MAX_WIDENING_RATIO * high))
    return change_saving(finding, saving, SavingNote.STEP_NOISE)


def rate_by_range(finding: Finding, wall_ns: float) -> Finding:
    """Return the finding with its severity limited by its saving, and its confidence limited by its range.

    A finding without a saving of time is returned unchanged.
    """
    low, high = finding.saving_ns
    if high <= 0:
        return finding
    is_wide = high > _MAX_SURE_SPAN * low and finding.confidence is Confidence.HIGH
    severity = finding.severity
    if finding.saving_bytes is None:
        severity = min(severity, rate_severity(high, wall_ns), key=LEVELS.index)
    return replace(
        finding, severity=severity, confidence=Confidence.MEDIUM if is_wide else finding.confidence
    )


def price_finding(step: PlayedStep, finding: Finding, cause: Cause) -> tuple[Finding | None, bool]:
    """Return the finding with the saving of its fix, or unchanged, and True if its step was played.

    The finding is None if only the step shows its cost and the step without it takes as long, or if the step
    shows another reason for its signs.
    """
    graph = step.graph
    if graph is None or finding.saving_ns[1] <= 0:
        return finding, False
    if cause.is_refuted is not None and cause.is_refuted(step):
        return None, True
    gains = list_gains(step, finding, cause)
    if not gains:  # the edit changes nothing in the step: the cost is unknown
        return finding, False
    low, high = widen_gains(min(gains), max(gains), step.step_ns)
    is_negligible = high < _NEGLIGIBLE_RATIO * step.step_ns
    # one possible outcome of the fix gains nothing, or too little to be told from nothing
    confidence = Confidence.LOW if low <= 0 else finding.confidence
    if cause.is_priced_by_step:
        if step.has_kernels and is_negligible and finding.severity is Severity.LOW:
            return None, True
        finding = replace(finding, severity=rate_severity(high, step.step_ns))
    if is_negligible:  # the step without the cause takes as long: the signs are real, but cost nothing
        noted = change_saving(finding, (0.0, high), SavingNote.GAINS_NOTHING, confidence=Confidence.LOW)
        return noted, True
    # a single step does not show if its content recurs
    is_significant = low > 0 and max(gains) >= MIN_GAIN_RATIO * step.step_ns and graph.steps > 1
    if is_significant and step.has_kernels and confidence is Confidence.LOW:
        is_note = cause.is_note is not None and cause.is_note(step.analysis)
        confidence = Confidence.LOW if is_note else Confidence.MEDIUM
    priced = replace(finding, saving_ns=(int(low), int(high)), confidence=confidence)
    return priced, True


def list_gains(step: PlayedStep, finding: Finding, cause: Cause) -> list[float]:
    """Return the gain of each possible outcome of the fix, in ns per step; empty if none can be played.

    For ranks recorded as spans of a thread, a change to the schedule of units is played on these units.
    """
    if cause.list_changes is not None and not step.has_kernels:
        changes = cause.list_changes(step.analysis, finding)
        known = [gain for change in changes if (gain := step.gain_of_change_ns(change)) is not None]
        if known:
            return known
    changed = _apply_edit(step, finding, cause)
    return [gain for graph in changed if (gain := step.gain_ns(graph)) is not None]


def _apply_edit(step: PlayedStep, finding: Finding, cause: Cause) -> list[Graph]:
    """Return the steps with the fix; empty if the edit finds nothing to change in this run.

    An edit that returns the graph itself means that the run has the fix already.
    """
    graph = step.graph
    if graph is None or cause.remove is None:
        return []
    return [
        changed
        for changed in cause.remove(step.analysis, graph, finding)
        if changed is graph or changes_graph(graph, changed)
    ]


def drop_explained(
    step: PlayedStep, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> list[Finding]:
    """Drop findings that are only an effect of another finding: fixed after it, they gain almost nothing."""
    if not step.has_kernels:
        return list(findings)
    sure = [finding for finding in findings if finding.confidence is not Confidence.LOW]
    explained = {
        other.cause
        for finding in sure
        for other in findings
        if causes[finding.cause].explains(causes[other.cause])
        and not (causes[other.cause].is_priced_by_step and other in sure)
        and _is_explained(step, finding, other, causes)
    }
    return [finding for finding in findings if finding.cause not in explained]


def move_after_stalls(
    step: PlayedStep, findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> tuple[Finding, ...]:
    """Move host waits after the stalls that explain them, with a note: then fixing them gains nothing."""
    ordered = list(findings)
    stalls = [finding for finding in findings if causes[finding.cause].is_stall]
    for waits in [finding for finding in findings if causes[finding.cause].sign is Sign.HOST_WAITS]:
        explaining = [stall for stall in stalls if _is_explained(step, stall, waits, causes)]
        if not explaining:
            continue
        noted = replace(waits, saving_notes=(*waits.saving_notes, SavingNote.EXPOSES_A_STALL))
        first = ordered.index(waits)
        last = max(ordered.index(stall) for stall in explaining)
        ordered[first] = noted
        if last > first:
            ordered.insert(last, ordered.pop(first))
    return tuple(ordered)


def _is_explained(step: PlayedStep, by: Finding, other: Finding, causes: Mapping[str, Cause]) -> bool:
    remove = causes[other.cause].remove
    fixed = _apply_edit(step, by, causes[by.cause])
    if remove is None or not fixed or not _apply_edit(step, other, causes[other.cause]):
        return False
    both = list(remove(step.analysis, fixed[-1], other))
    if not both:
        return False
    alone, together = step.gain_ns(fixed[-1]), step.gain_ns(both[-1])
    if alone is None or together is None:
        return False
    return together - alone < _NEGLIGIBLE_RATIO * step.step_ns
