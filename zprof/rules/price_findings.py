"""Give each finding the saving of its fix: of the step with it and without (:mod:`zprof.step.predict`).

Late launches move forward, dependent work follows, and hidden work may become exposed. A finding whose cause
has no edit, or of whose edit nothing in this run can be played, keeps what its rule says.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, SavingNote, Severity
from zprof.rules.compute.idle_time import is_inference
from zprof.rules.message_sizes import ResizedMessages
from zprof.rules.rule import MIN_GAIN_RATIO, Rule, change_saving, rate_severity
from zprof.rules.step_edits import (
    EDITS,
    SCHEDULE_CHANGES,
    SLOWED_RATIO,
    measure_slowdown,
    select_opening_gathers,
)
from zprof.rules.volume.regathers import measure_headroom, read_gathers
from zprof.step.edits import changes_graph
from zprof.step.messages import held_gathers_ratio, late_gathers_ratio
from zprof.step.predict import PlayedStep, widen_gains
from zprof.step.tasks import Graph

#: A gain below this share of the step means that the cause costs nothing.
_NEGLIGIBLE_RATIO = 0.01
#: Causes proven by counts or bytes, whose cost only a replay of the step shows.
_PROPOSED_CAUSES = frozenset(
    {
        Cause.ACCUMULATION_SYNCS,
        Cause.ACCUMULATION_REGATHERS,
        Cause.CHECKPOINT_REGATHERS,
        Cause.LAST_UNIT_REGATHERED,
        Cause.NEEDLESS_RESHARD_AFTER_FORWARD,
        Cause.FP32_GATHER,
        Cause.FP32_REDUCE,
        Cause.COPY_OVERHEAD,
        Cause.COMM_SLOWS_COMPUTE,
    }
)
#: Stalls that a host running ahead would hide; a wait at the end of each step exposes them.
_STALL_CAUSES = frozenset({Cause.DATA_LOADER, Cause.STRAGGLER_RANK, Cause.ROTATING_STRAGGLER})
#: Minimum share of late gathers. Without prefetch in one of two passes half of the gathers are late, or a
#: quarter if later micro-batches keep units.
_MIN_LATE_RATIO = 0.20
#: Minimum share of delayed gathers: a few start by chance when a kernel ends.
_MIN_DELAYED_RATIO = 0.1


class Priced(NamedTuple):
    """A finding, None if it is dropped; ``is_played``: its saving is that of the played step."""

    finding: Finding | None
    is_played: bool


def price_finding(step: PlayedStep, finding: Finding) -> Priced:
    """Return the finding with the saving of its fix, or unchanged if nothing of the step is its cause.

    It is dropped if a rule only proposed the finding and the step without it takes as long, if gathers
    are exposed for a reason other than their launch, or if kernels are not slowed down.
    """
    analysis, graph = step.analysis, step.graph
    if graph is None or finding.saving_ns[1] <= 0:
        return Priced(finding, is_played=False)
    if step.has_kernels:
        if finding.cause is Cause.NO_PREFETCH and are_gathers_late(analysis, graph) is False:
            return Priced(None, is_played=True)
        is_slowdown = finding.cause is Cause.COMM_SLOWS_COMPUTE
        if is_slowdown and measure_slowdown(analysis, graph).factor <= SLOWED_RATIO:
            return Priced(None, is_played=True)
    gains = list_gains(step, finding)
    if not gains:  # nothing of the step is the cause: it cannot be said what it costs
        return Priced(finding, is_played=False)
    low, high = widen_gains(min(gains), max(gains), step.step_ns)
    confidence = finding.confidence
    if min(gains) <= 0:  # one way in which the fix may turn out gains nothing
        confidence = Confidence.LOW
    if finding.cause in _PROPOSED_CAUSES:
        if step.has_kernels and high < _NEGLIGIBLE_RATIO * step.step_ns and finding.severity is Severity.LOW:
            return Priced(None, is_played=True)
        finding = replace(finding, severity=rate_severity(high, step.step_ns))
    if high < _NEGLIGIBLE_RATIO * step.step_ns:
        # the step without the cause takes as long: the rule's signal is real, but costs nothing
        noted = change_saving(finding, (0.0, high), SavingNote.GAINS_NOTHING, confidence=Confidence.LOW)
        return Priced(noted, is_played=True)
    # one step does not show whether its content recurs
    is_significant = min(gains) > 0 and max(gains) >= MIN_GAIN_RATIO * step.step_ns and graph.steps > 1
    if (
        is_significant
        and step.has_kernels
        and confidence is Confidence.LOW
        and not _is_a_note(analysis, finding)
    ):
        confidence = Confidence.MEDIUM
    priced = replace(finding, saving_ns=(int(low), int(high)), confidence=confidence)
    return Priced(priced, is_played=True)


def list_gains(step: PlayedStep, finding: Finding) -> list[float]:
    """Return the gain of each way in which the fix may turn out, in ns per step; empty if none can be played.

    Of ranks that are spans of a thread, a change of the schedule of units is played by these units.
    """
    changes = SCHEDULE_CHANGES.get(finding.cause) if not step.has_kernels else None
    if changes is not None:
        predicted = [step.gain_of_change_ns(change) for change in changes(step.analysis, finding)]
        known = [gain for gain in predicted if gain is not None]
        if known:
            return known
    return [gain for graph in _apply_edit(step, finding) if (gain := step.gain_ns(graph)) is not None]


def _apply_edit(step: PlayedStep, finding: Finding) -> list[Graph]:
    """Return the steps with the fix; empty if the edit finds nothing to change in this run.

    An edit that returns the graph itself says that the run has the fix already.
    """
    graph, edit = step.graph, EDITS.get(finding.cause)
    if graph is None or edit is None:
        return []
    return [
        changed
        for changed in edit(step.analysis, graph, finding)
        if changed is graph or changes_graph(graph, changed)
    ]


def drop_explained(step: PlayedStep, findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Drop findings that are only the effect of another one: fixed after it, they gain almost nothing."""
    if not step.has_kernels:
        return list(findings)
    explains = {rule.cause: rule.explains for rule in rules}
    sure = [finding for finding in findings if finding.confidence is not Confidence.LOW]
    explained_causes = {
        other.cause
        for finding in sure
        for other in findings
        if other.cause in explains.get(finding.cause, ())
        and not (other.cause in _PROPOSED_CAUSES and other in sure)
        and _is_explained(step, finding, other)
    }
    return [finding for finding in findings if finding.cause not in explained_causes]


def move_after_stalls(step: PlayedStep, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Move host waits after the stalls that explain them, with a note: after these, they gain nothing."""
    ordered = list(findings)
    stalls = [finding for finding in findings if finding.cause in _STALL_CAUSES]
    for waits in [finding for finding in findings if finding.cause is Cause.BLOCKING_SYNC]:
        explaining = [stall for stall in stalls if _is_explained(step, stall, waits)]
        if not explaining:
            continue
        noted = replace(waits, saving_notes=(*waits.saving_notes, SavingNote.EXPOSES_A_STALL))
        first = ordered.index(waits)
        last = max(ordered.index(stall) for stall in explaining)
        ordered[first] = noted
        if last > first:
            ordered.insert(last, ordered.pop(first))
    return tuple(ordered)


def _is_explained(step: PlayedStep, by: Finding, other: Finding) -> bool:
    second = EDITS.get(other.cause)
    fixed = _apply_edit(step, by)
    if second is None or not fixed or not _apply_edit(step, other):
        return False
    both = list(second(step.analysis, fixed[-1], other))
    if not both:
        return False
    alone, together = step.gain_ns(fixed[-1]), step.gain_ns(both[-1])
    if alone is None or together is None:
        return False
    return together - alone < _NEGLIGIBLE_RATIO * step.step_ns


def are_gathers_late(analysis: RunAnalysis, graph: Graph) -> bool | None:
    """Return True if the program launches the gathers of its units only when their compute is due.

    The result is None if the graph has no gather after the first one of a step. It is False if kernels delay
    gathers that were launched before them, because then the kernels make gathers late. A model that is one
    unit has nothing to launch ahead.
    """
    rows = select_opening_gathers(analysis)
    late_ratio = late_gathers_ratio(graph, rows)
    if late_ratio is None:
        return None
    if held_gathers_ratio(graph, rows) >= _MIN_DELAYED_RATIO or late_ratio < _MIN_LATE_RATIO:
        return False
    return not ResizedMessages(analysis, graph).is_one_unit


def _is_a_note(analysis: RunAnalysis, finding: Finding) -> bool:
    """Return True if confidence is low for a reason other than time: the fix may be impossible."""
    if finding.cause is Cause.BLOCKING_SYNC:
        return is_inference(analysis)  # a decoder reads each token back
    if finding.cause is Cause.LOW_BUS_BANDWIDTH:
        return True  # what a link should give may be unknown
    if finding.cause is Cause.COPY_OVERHEAD:
        return True  # copies at the usual speed, which padding can lengthen
    if finding.cause is Cause.NEEDLESS_RESHARD_AFTER_FORWARD:
        return not measure_headroom(analysis, read_gathers(analysis)).suffices
    return False
