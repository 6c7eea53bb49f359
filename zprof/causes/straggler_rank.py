"""ZP301: one rank is late, step after step, and the others wait for it.

Signs: the rank's *delay*, the excess of its own time in a step over the median of the others
(:mod:`zprof.analysis.time.own_time`). Some rank always arrives last, so arriving last is no proof. Exposed
wait alone is not the cost either: if communication only just fits under compute, the others' waits hide there
(a 12 % slower rank cost 9 % of the step with 1 % of exposed wait). The delay covers both.

If compute varies from step to step, its sum with idle time is not informative, and each part is tested
separately (:mod:`zprof.analysis.time.late_ranks`). If a delay may be chance, or a costly delay would not
stand out from the variation, the cause is untested: no rank is cleared.

The delay must exceed the noise floor, the clocks' uncertainty and on a CPU the turns of the scheduler, be the
largest in more steps than chance makes likely, and cost something. Above low confidence chance is below 2.5 %
(high) or 5 % (medium), and the delay exceeds 1.5 or 2 times three standard errors of its median: with two
equal ranks, one arrives last in seven of eight steps in 7 % of all runs. A delay that is mostly time without
a processor is due to the machine's load, and never above low confidence.

    cost = min(delay, all waiting of the others for it, hidden or exposed)

because without the delay the others continue at most that much earlier, and if the link is the bottleneck no
rank waits for another. With the fix the late ranks take as long as the others.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    find_missing_collectives,
    make_fact,
    make_untested,
    select_steady_rows,
)
from zprof.analysis.time.late_ranks import (
    MIN_SURE_COST_RATIO,
    LateRank,
    find_doubts,
    find_missing_ranks,
    is_delay_passed_on,
    list_late_ranks,
)
from zprof.analysis.time.own_time import measure_own_time
from zprof.causes.cause import Cause, Observation, Sign, Signal
from zprof.causes.lateness import MOVE_RANK, explain_lateness, explain_queue
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.time import LateReason
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import find_steady_rank
from zprof.step.tasks import Graph
from zprof.step.unequal_work import is_unequal_by_data

#: Maximum probability that noise explains a finding.
_MAX_CHANCE = 0.10
#: Maximum probability of noise, and minimum delay over its error, for high and for medium confidence.
_LIMITS = ((Confidence.HIGH, 0.025, 1.5), (Confidence.MEDIUM, 0.05, 2.0))
#: Minimum gain of the played step: the outlier ranks are already known.
_MIN_SEEN_RATIO = 0.01
_MAX_NAMED_RANKS = 4

CAUSE = Cause(
    id="ZP301",
    name="straggler_rank",
    meaning="One rank is late, step after step, and the others wait for it.",
    terms=("exposed_wait_ns", "exposed_transfer_ns"),
    other_rank_terms=("idle_ns", "exposed_memcpy_ns"),
    sign=Sign.LATE_RANK,
    is_stall=True,
    is_decisive=True,
    amounts=("own_time_excess",),
    sentence="{late} {delay:ns} late in {last} of {steps} steps because {why}: {who} {caused:ns} {per_step} "
    "for {whom}, exposed",
    observed="rank {rank} is slower than the others in {last} of {steps} steps: at their pace {step_is} "
    "shorter",
    evidence={
        "own_time_excess": ("own busy time in excess of the others, median", Unit.NS),
        "noise_floor": ("delay that noise and clocks can cause", Unit.NS),
        "own_time_excess_over_all": ("excess over all ranks that are not late", Unit.NS),
        "steps_latest_ratio": ("steps in which it is the latest", Unit.RATIO),
        "noise_probability": ("probability that this is noise", Unit.RATIO),
        "wait_caused_per_step": ("wait caused {per_step}{by}, per waiting rank", Unit.NS),
        "wait_caused_with_hidden": ("including the part hidden by compute", Unit.NS),
        "waiting_ranks": ("ranks that wait", Unit.COUNT),
        "extra_operator_{place}_per_step": ("{operator} {per_step}", Unit.COUNT),
        "others_operator_{place}_per_step": ("{operator} {per_step}, median of the other ranks", Unit.COUNT),
        "processor_wait_per_step": (
            "ready, but without a processor {per_step}, more than the others",
            Unit.NS,
        ),
        "steps_standing_out": ("steps in which it stands out", Unit.COUNT),
    },
    disprove=MOVE_RANK,
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if one rank is late at collectives and costs the others time."""
    if (missing := find_missing_collectives(analysis)) is not None:
        return missing
    if (select_steady_rows(analysis).ints("group_size") == 1).all():
        return None
    if (missing := find_missing_ranks(analysis)) is not None:
        return missing
    own = measure_own_time(analysis)
    seen = list_late_ranks(analysis, own)
    late = next((late for late in seen if late.suspect.chance < _MAX_CHANCE), None)
    if late is None:
        return find_doubts(analysis, own, seen)
    if is_delay_passed_on(analysis, late.suspect.named):
        return make_untested("delay_passed_on", rank=late.suspect.rank)
    return _make_signal(analysis, late)


def _make_signal(analysis: RunAnalysis, late: LateRank) -> Signal:
    suspect, waits = late.suspect, late.waits
    rank, count = suspect.rank, len(suspect.named)
    why = (
        explain_queue(suspect)
        if suspect.lacks_processors
        else explain_lateness(analysis, late.reason, (rank, *suspect.named), suspect.delay_ns)
    )
    return Signal(
        confidence=_rate_confidence(late),
        words={
            "late": _name_ranks(suspect.named),
            "delay": suspect.delay_ns,
            "last": round(suspect.last_ratio * suspect.steps),
            "steps": suspect.steps,
            "why": why.text,
            "who": "the other rank waits" if waits.ranks == 1 else f"each of {waits.ranks} ranks waits",
            "caused": waits.caused_ns,
            "whom": "it" if count == 1 else f"these {count} ranks together",
        },
        facts=[
            make_fact("own_time_excess", suspect.delay_ns, rank=rank),
            make_fact("noise_floor", suspect.floor_ns),
            make_fact("own_time_excess_over_all", suspect.beyond_ns, rank=rank),
            make_fact("steps_latest_ratio", suspect.last_ratio, rank=rank),
            make_fact("noise_probability", suspect.chance),
            make_fact(
                "wait_caused_per_step",
                waits.caused_ns,
                by=" by the late ranks together" if count > 1 else "",
            ),
            make_fact("wait_caused_with_hidden", waits.caused_hidden_too_ns),
            make_fact("waiting_ranks", waits.ranks),
            *why.facts,
        ],
        lost_ns=late.cost_ns,
        fix=why.fix,
        disprove=why.disprove,
        locate=lambda: why.location,
    )


def _name_ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    more = len(ranks) - _MAX_NAMED_RANKS
    named = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED_RANKS])
    return f"ranks {named} and {more} more are" if more > 0 else f"ranks {named} are"


def _rate_confidence(late: LateRank) -> Confidence:
    suspect = late.suspect
    if suspect.lacks_processors or late.cost_ns < MIN_SURE_COST_RATIO * late.wall_ns:
        return Confidence.LOW
    for confidence, max_chance, min_errors in _LIMITS:
        if suspect.chance < max_chance and suspect.delay_ns > min_errors * suspect.error_ns:
            return confidence
    return Confidence.LOW


@CAUSE.refute
def has_more_data(step: PlayedStep) -> bool:
    """Return True if only attention, or only experts, take longer: the rank's data is the reason."""
    return step.graph is not None and is_unequal_by_data(step.analysis, step.graph)


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the rank that is slow in nearly all measured steps."""
    assert step.graph is not None
    if has_more_data(step):
        return None
    slow = find_steady_rank(step.analysis, step.graph)
    if slow is None:
        return None
    why = explain_lateness(step.analysis, LateReason.COMPUTE, (slow.rank,), slow.excess_ns)
    return Observation(
        changed=[edits.even_out_ranks(step.graph, [slow.rank])],
        words={"rank": slow.rank, "last": slow.steps, "steps": step.graph.steps},
        facts=[*why.facts, make_fact("steps_standing_out", slow.steps, rank=slow.rank)],
        min_ratio=_MIN_SEEN_RATIO,
        gain_rank=slow.rank,
        fix=why.fix,
        disprove=why.disprove,
        locate=lambda: why.location,
    )


@CAUSE.edit
def even_out_late_ranks(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which the late ranks, or all ranks, take as long as the median rank."""
    late = sorted({entry.rank for entry in finding.evidence if entry.rank is not None})
    return [edits.even_out_ranks(graph, late), edits.even_out_ranks(graph)] if late else []
