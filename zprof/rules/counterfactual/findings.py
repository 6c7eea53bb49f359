"""Find causes on devices by playing the measured step without them.

The other rules look for signs of a cause and then estimate its cost. Here the cost is the sign: the step of
all ranks is replayed without the effects of a cause (blocking calls, slow launches, one slow rank). If it
gets significantly shorter, the cause is present, regardless of the ledger terms involved. A cause that a rule
has found is left to that rule.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding, SourceLocation
from zprof.model.time import LateReason
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.waiting.late_ranks import explain_lateness
from zprof.rules.waiting.rotating_straggler import STEPS_RATIO
from zprof.step import edits
from zprof.step.calls import (
    measure_loading_ns,
)
from zprof.step.predict import PlayedStep, widen_gains
from zprof.step.slow_ranks import find_excess, find_slowest, mark_in_turn, mark_recurring
from zprof.step.tasks import NONE, Graph

#: Minimum gain, as a share of the step, to report a cause, and for high confidence.
_MIN_STEP_RATIO, _HIGH_CONFIDENCE_RATIO = 0.015, 0.05
#: Minimum gain if the cause itself was observed: ranks that stand out, or this share of a step's collectives.
_MIN_OBSERVED_RATIO, _MIN_BLOCKED_RATIO = 0.01, 0.25
#: Minimum share of the steps with the same late rank.
_SAME_RANK_RATIO = 0.8
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3


class _Candidate(Struct, frozen=True, kw_only=True):
    """A possible cause in the measured step, and the replayed steps without it."""

    cause: Cause
    changed: Sequence[Graph]
    sentence: str
    fix: str
    disprove: str
    count: float = 0.0
    #: Key of the evidence for ``count``.
    count_key: str = ""
    rank: int | None = None
    min_ratio: float = _MIN_STEP_RATIO
    #: Evidence besides the gain.
    evidence: tuple[Fact, ...] = ()
    #: Finds the line of the user's program; called only if the candidate becomes a finding.
    locate: Callable[[], SourceLocation | None] = lambda: None


def find_by_replay(analysis: RunAnalysis, step: PlayedStep, known: Sequence[Finding]) -> list[Finding]:
    """Return findings of causes that no rule found above low confidence, by the gain of removing them."""
    graph = step.graph
    if graph is None or not step.has_kernels:
        return []
    known_causes = {each.cause for each in known if each.confidence is not Confidence.LOW}
    findings: list[Finding] = []
    for find_candidates in (_find_late_ranks,):
        judged = [
            _judge_candidate(step, graph, each)
            for each in find_candidates(analysis, graph)
            if each.cause not in known_causes
        ]
        findings += [one for one in judged if one is not None]
    return findings


def _judge_candidate(step: PlayedStep, graph: Graph, candidate: _Candidate) -> Finding | None:
    gains = [gain for changed in candidate.changed if (gain := step.gain_ns(changed)) is not None]
    if not gains or max(gains) < candidate.min_ratio * step.step_ns:
        return None
    low, high = widen_gains(min(gains), max(gains), step.step_ns)
    evidence = [
        *candidate.evidence,
        make_fact("replayed_saving", max(gains), rank=candidate.rank),
    ]
    if candidate.count_key:
        evidence.append(make_fact(candidate.count_key, candidate.count, rank=candidate.rank))
    is_sure = low >= _HIGH_CONFIDENCE_RATIO * step.step_ns and graph.steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    # one step cannot show that anything recurs
    is_note = graph.steps == 1
    return make_finding(
        step.analysis,
        candidate.cause,
        sentence=candidate.sentence,
        evidence=evidence,
        saving_ns=(low, high),
        severity=rate_severity(high, step.step_ns),
        confidence=Confidence.LOW if is_note else Confidence.HIGH if is_sure else Confidence.MEDIUM,
        fix=candidate.fix,
        disprove=candidate.disprove,
        location=candidate.locate(),
    )


def _find_late_ranks(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    """Return one rank whose steps stand out from the others', and steps in which ranks alternate."""
    words = analysis.time.words
    if len(graph.ranks) < 2 or len(analysis.run.ranks_loaded) < analysis.run.world_size or graph.steps < 2:
        return []
    if not (graph.members > 1).any():  # it is unknown which rank waits for which
        return []
    loading = measure_loading_ns(analysis, graph)
    excess = find_excess(graph, loading)
    cells = mark_recurring(excess)
    per_rank = cells[:, 1:].sum(axis=1)
    slowest = int(np.argmax(per_rank))
    numbers = [rank.tasks.rank for rank in graph.ranks]
    findings = []
    if cells[slowest].sum() > 1 and per_rank[slowest] >= _SAME_RANK_RATIO * (graph.steps - 1):
        number = numbers[slowest]
        why = explain_lateness(analysis, LateReason.COMPUTE, (number,), float(np.median(excess[slowest])))
        findings.append(
            _Candidate(
                cause=Cause.STRAGGLER_RANK,
                changed=[edits.even_out_ranks(graph, [number])],
                sentence=(
                    f"rank {number} is slower than the others in {per_rank[slowest]} of "
                    f"{graph.steps} steps: at their pace {words.step_is} shorter"
                ),
                fix=why.fix,
                disprove=why.disprove,
                locate=lambda: why.location,
                evidence=why.evidence,
                count=float(per_rank[slowest]),
                count_key="steps_standing_out",
                rank=number,
                min_ratio=_MIN_OBSERVED_RATIO,
            )
        )
    turns = find_excess(graph, loading, in_turn=True)
    if findings:
        turns[slowest] = 0.0
    cells = mark_in_turn(turns)
    latest = find_slowest(np.where(cells, turns, 0.0))
    late = latest != NONE
    if late.mean() >= STEPS_RATIO and len(set(latest[late].tolist())) > 1:
        findings.append(
            _Candidate(
                cause=Cause.ROTATING_STRAGGLER,
                changed=[edits.even_out_steps(graph, cells)],
                sentence=(
                    f"in {int(late.sum())} of {len(late)} steps a different rank is slow "
                    f"by itself: at the pace of the others {words.step_is} shorter"
                ),
                fix="gc.collect(); gc.freeze(); gc.disable()          # before the loop\n"
                "if step % 500 == 0: gc.collect()                 # in the loop: on all ranks in the same "
                "step",
                disprove="turn the collector off (gc.disable()) and give each rank its own cores, then "
                "record again: if ranks still take turns being late, their hosts are not the cause",
                count=float(late.sum()),
                count_key="steps_with_slow_rank",
                min_ratio=_MIN_OBSERVED_RATIO,
            )
        )
    return findings
