"""Estimate the saving of a fix by replaying the measured step without the cause.

A rule finds its cause and has its own range. Here the step of all ranks is replayed with that single change
(:mod:`zprof.step`): late launches move forward, dependent work follows, and hidden work may become exposed.
The saving is the gain of the replay, widened by the replay's error. If the rule's own range does not overlap
it, the two models disagree, and the confidence is lowered.
"""

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, SavingNote, Severity
from zprof.model.gaps import Gap
from zprof.rules.compute.idle_time import is_inference
from zprof.rules.counterfactual.fixes import (
    EDITS,
    SLOWED_RATIO,
    Edit,
    measure_slowdown,
    select_opening_gathers,
)
from zprof.rules.counterfactual.resized_messages import ResizedMessages
from zprof.rules.rule import MIN_GAIN_RATIO, Rule, change_saving, rate_severity
from zprof.rules.volume.regathers import measure_headroom, read_gathers
from zprof.step.edits import changes_graph
from zprof.step.from_kernels import build_graph
from zprof.step.link_sharing import infer_link_sharing
from zprof.step.messages import held_gathers_ratio, late_gathers_ratio
from zprof.step.play import ReplayDeadlock, play_graph
from zprof.step.tasks import Floats, Graph

#: Error of a replayed gain: unrecorded dependencies, and times that the change itself affects.
_MODEL_ERROR_RATIO = 0.15
#: Minimum error of a replay, as a share of the step.
_STEP_ERROR_RATIO = 0.002
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


class Replay(Struct, frozen=True, kw_only=True, dict=True):
    """The graph of a run, built and played on first access."""

    analysis: RunAnalysis

    @cached_property
    def _played(self) -> tuple[Graph, Floats] | None:
        """The measured step and its replay, None if the recording does not allow one.

        If wrongly matched collectives cause a deadlock, each rank is replayed by
        itself.
        """
        for apart in (False, True):
            graph = build_graph(self.analysis, apart=apart)
            if isinstance(graph, Gap):
                return None
            try:
                shared = self._with_shared_links(graph)
                return shared, play_graph(shared)
            except ReplayDeadlock:
                continue
        return None

    def _with_shared_links(self, graph: Graph) -> Graph:
        return infer_link_sharing(graph, self.analysis.collectives)

    @property
    def graph(self) -> Graph | None:
        """The measured step, None if the recording does not allow a replay."""
        return self._played[0] if self._played else None

    @property
    def base_ns(self) -> Floats | None:
        """End of each step of each rank in the replay, None if there is no replay."""
        return self._played[1] if self._played else None

    @property
    def causes(self) -> frozenset[Cause]:
        """Causes whose savings a replay estimates; empty if there is no replay."""
        return frozenset(EDITS) if self.base_ns is not None else frozenset()

    @property
    def step_ns(self) -> float:
        """Replayed time of a step, in ns; 0 if there is no replay."""
        return _mean_step_ns(self.base_ns) if self.base_ns is not None else 0.0

    def gain_ns(self, changed: Graph) -> float | None:
        """Return the reduction of the step time with the change, None if it cannot be replayed."""
        if self.base_ns is None:
            return None
        try:
            return _mean_step_ns(self.base_ns) - _mean_step_ns(play_graph(changed))
        except ReplayDeadlock:
            return None


def _mean_step_ns(ends: Floats) -> float:
    """Return the mean step time over the ranks, without the first step, which contains the start-up."""
    if ends.shape[1] == 1:
        return float(ends.mean())
    whole = float((ends[:, -1] - ends[:, 0]).mean())
    return whole / (int(ends.shape[1]) - 1)


def estimate_saving(replay: Replay, finding: Finding) -> Finding | None:
    """Return the finding with the range of its replay, or unchanged if its cause has none.

    The result is None if a rule only proposed the finding and the replay shows that it costs nothing, if
    gathers are exposed for a reason other than their launch, or if kernels are not slowed down. A replay
    without an edit for the cause in this run overrules nothing.
    """
    edit = EDITS.get(finding.cause)
    if edit is None or replay.base_ns is None or replay.graph is None or finding.saving_ns[1] <= 0:
        return finding
    if finding.cause is Cause.NO_PREFETCH and are_gathers_late(replay.analysis, replay.graph) is False:
        return None
    if (
        finding.cause is Cause.COMM_SLOWS_COMPUTE
        and measure_slowdown(replay.analysis, replay.graph).factor <= SLOWED_RATIO
    ):
        return None
    changed = _apply_edit(replay, edit, finding)
    gains = [gain for graph in changed if (gain := replay.gain_ns(graph)) is not None]
    if not gains:  # nothing in the graph is the cause: the replay cannot say what it costs
        return finding
    low, high = widen_by_model_error(min(gains), max(gains), replay.step_ns)
    own_range, confidence = finding.saving_ns, finding.confidence
    if min(gains) <= 0:  # one variant of the fix gains nothing
        confidence = Confidence.LOW
    if finding.cause in _PROPOSED_CAUSES:
        own_range = int(low), int(high)
        if high < _NEGLIGIBLE_RATIO * replay.step_ns and finding.severity is Severity.LOW:
            return None
        finding = replace(finding, severity=rate_severity(high, replay.step_ns))
    if high < _NEGLIGIBLE_RATIO * replay.step_ns:
        # the step without the cause takes as long: the rule's signal is real, but costs nothing
        saving = (0.0, max(high, float(own_range[0])))
        return change_saving(finding, saving, SavingNote.REPLAY_GAINS_NOTHING, confidence=Confidence.LOW)
    # one step does not show whether its content recurs
    is_significant = (
        min(gains) > 0 and max(gains) >= MIN_GAIN_RATIO * replay.step_ns and replay.graph.steps > 1
    )
    if is_significant and confidence is Confidence.LOW and not _is_a_note(replay.analysis, finding):
        confidence = Confidence.MEDIUM
    if low <= own_range[1] and own_range[0] <= high:
        return change_saving(finding, (low, high), SavingNote.REPLAYED, confidence=confidence)
    if finding.cause is Cause.NO_PREFETCH and own_range[0] > high:
        saving = (low, float(own_range[1]))
        return change_saving(finding, saving, SavingNote.REPLAY_IS_MINIMUM, confidence=confidence)
    if confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    return change_saving(finding, (low, high), SavingNote.REPLAY_DISAGREES, confidence=confidence)


def _apply_edit(replay: Replay, edit: Edit, finding: Finding) -> list[Graph]:
    """Return the steps with the fix; empty if the edit finds nothing to change in the graph of this run.

    An edit that returns the graph itself says that the run has the fix already.
    """
    graph = replay.graph
    if graph is None:
        return []
    return [
        changed
        for changed in edit(replay.analysis, graph, finding)
        if changed is graph or changes_graph(graph, changed)
    ]


def drop_explained(replay: Replay, findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Drop findings that are only the effect of another one: fixed after it, they gain almost nothing."""
    explains = {rule.cause: rule.explains for rule in rules}
    sure = [finding for finding in findings if finding.confidence is not Confidence.LOW]
    explained_causes = {
        other.cause
        for finding in sure
        for other in findings
        if other.cause in explains.get(finding.cause, ())
        and not (other.cause in _PROPOSED_CAUSES and other in sure)
        and _is_explained(replay, finding, other)
    }
    return [finding for finding in findings if finding.cause not in explained_causes]


def move_after_stalls(replay: Replay, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Move host waits after the stalls that explain them, with a note: after these, they gain nothing."""
    ordered = list(findings)
    stalls = [finding for finding in findings if finding.cause in _STALL_CAUSES]
    for waits in [finding for finding in findings if finding.cause is Cause.BLOCKING_SYNC]:
        explaining = [stall for stall in stalls if _is_explained(replay, stall, waits)]
        if not explaining:
            continue
        noted = replace(waits, saving_notes=(*waits.saving_notes, SavingNote.EXPOSES_A_STALL))
        first = ordered.index(waits)
        last = max(ordered.index(stall) for stall in explaining)
        ordered[first] = noted
        if last > first:
            ordered.insert(last, ordered.pop(first))
    return tuple(ordered)


def _is_explained(replay: Replay, by: Finding, other: Finding) -> bool:
    first, second = EDITS.get(by.cause), EDITS.get(other.cause)
    if first is None or second is None or replay.graph is None:
        return False
    fixed = _apply_edit(replay, first, by)
    if not fixed or not _apply_edit(replay, second, other):
        return False
    both = list(second(replay.analysis, fixed[-1], other))
    if not both:
        return False
    alone, together = replay.gain_ns(fixed[-1]), replay.gain_ns(both[-1])
    if alone is None or together is None:
        return False
    return together - alone < _NEGLIGIBLE_RATIO * replay.step_ns


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


def widen_by_model_error(lowest_ns: float, highest_ns: float, step_ns: float) -> tuple[float, float]:
    """Return the range between the lowest and the highest replayed gain, widened by the replay's error."""
    slack = _STEP_ERROR_RATIO * step_ns
    low = max(0.0, lowest_ns * (1 - _MODEL_ERROR_RATIO) - slack)
    return low, max(0.0, highest_ns * (1 + _MODEL_ERROR_RATIO) + slack)


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
