"""ZP301 straggler_rank: one rank is late, step after step, and the others wait for it.

Signal: the rank's *delay*, which is how much longer than the median of the others it is busy with itself in a
step (:mod:`zprof.analysis.time.own_time`). Some rank always arrives last, so arriving last accuses nobody.
Exposed wait alone is not the cost either: if communication only just fits under compute, the others' waits
hide there (a 12 % slower rank cost 9 % of the step with 1 % of exposed wait). The delay covers both.

If compute varies from step to step, its sum with idle time is not informative, and each part is tested by
itself (:mod:`zprof.rules.waiting.late_ranks`). A delay that may be chance, or variation in which a costly
delay would not show, is stated as a gap: nobody was cleared.

The delay must exceed the noise floor, the clocks' uncertainty and on a CPU the turns of the scheduler, be the
largest in more steps than chance makes likely, and cost something. Above low confidence chance is below 2.5 %
(high) or 5 % (medium), and the delay exceeds 1.5 or 2 times three standard errors of its median: of two equal
ranks one is the last in seven of eight steps in 7 % of all runs. A delay that is mostly time without a
processor is one of the machine's load, and never above low confidence.

    cost = min(delay, all waiting of the others for it, hidden or exposed)

because without the delay the others continue at most that much earlier, and if the link is the bottleneck no
rank waits for another. With the fix the late ranks take as long as the others.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups
from zprof.analysis.per_step import (
    INSTANCE,
    count_steps,
    has_no_collectives,
    mean_wall_ns,
    select_steady_rows,
)
from zprof.analysis.time.own_time import OwnTime, measure_own_time, measure_own_time_with_idle
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.time import LateReason
from zprof.rules.evidence import STEPS_LATEST_RATIO, Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.waiting.late_ranks import (
    Suspect,
    explain_lateness,
    explain_queue,
    find_reason,
    find_suspect,
    find_suspects_by_part,
)


class CausedWaits(Struct, frozen=True, kw_only=True):
    """The waits that late ranks cause, in ns per step.

    ``bound_ns``: the maximum gain of the median waiting rank per step without the late ones. It includes
    hidden waiting: the median over steps, or their mean without the first collective of the window if that is
    more. ``caused_ns``: wait caused, as elsewhere in the report (``Blame`` of :mod:`zprof.model.time`):
    exposed, per step, the mean of the ``ranks`` that waited. ``caused_hidden_too_ns`` includes the part
    hidden by compute.
    """

    bound_ns: float
    caused_ns: float
    caused_hidden_too_ns: float
    ranks: int


def measure_waits(analysis: RunAnalysis, late: tuple[int, ...]) -> CausedWaits:
    """Return the waiting in collectives at which one of the ``late`` ranks arrived last.

    If there are many groups, few have a late rank. The others wait for ranks that it delayed.
    """
    rows = analysis.collectives
    rows = rows.at(rows.bools("matched") & (rows.ints("group_size") != 1))
    instances, is_late = Groups(rows.ints(INSTANCE)), np.isin(rows.ints("rank"), late)
    last = np.lexsort((-rows.ints("start_ns"), instances.codes))[instances.starts]
    is_blamed, is_met = is_late[last][instances.codes], instances.max(is_late)[instances.codes]
    passed_on = np.isin(rows.ints("origin_rank"), late) & ~is_met
    waiting = rows.at((is_blamed | passed_on) & ~is_late)
    steady = waiting.at(~waiting.bools("first_of_window"))
    steps = max(1, count_steps(analysis))
    each, rest = _median_wait_per_step(waiting), _median_wait_per_step(steady)
    typical = float(np.median([*each, *[0.0] * (steps - len(each))])) if len(each) else 0.0
    caused = analysis.collectives
    is_caused = np.isin(caused.ints("blamed_rank"), late) & ~np.isin(caused.ints("rank"), late)
    caused = caused.at(is_caused & (caused.ints("wait_ns") > 0))
    ranks = len(np.unique(caused.ints("rank")))
    return CausedWaits(
        bound_ns=max(typical, float(rest.sum()) / steps),
        caused_ns=float(caused.ints("exposed_wait_ns").sum()) / (steps * max(1, ranks)),
        caused_hidden_too_ns=float(caused.ints("wait_ns").sum()) / (steps * max(1, ranks)),
        ranks=ranks,
    )


def _median_wait_per_step(rows: Columns) -> Floats:
    """Return the median wait of the waiting ranks, by step."""
    each = rows.group_by("step", "rank")
    return Groups(rows.ints("step")[each.first]).median(each.sum(rows.ints("wait_ns")))


_MIN_STEPS = 3
_LAST_RATIO = 0.60
#: Maximum chance of noise for a finding.
_MAX_CHANCE = 0.10
#: Maximum chance of noise and minimum delay over its error, for high and for medium confidence.
_HIGH_LIMITS = (0.025, 1.5)
_MEDIUM_LIMITS = (0.05, 2.0)
#: Minimum cost as a share of the step: for a finding, and for more than low confidence.
_MIN_STEP_RATIO = 0.02
_COST_RATIO = 0.05
#: If a delay of this share of the step would be lost in the noise, a run is not reported as free of late
#: ranks.
_UNSEEN_RATIO = 0.10
_MAX_NAMED_RANKS = 4


class _LateRank(Struct, frozen=True, kw_only=True):
    """A late rank, the waits that it causes, and the reason."""

    suspect: Suspect
    waits: CausedWaits
    reason: LateReason
    wall_ns: float


def straggler_rank(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if one rank is late at collectives and costs the others time."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.STRAGGLER_RANK, "no collective was recorded", "record the time window")
    rows = select_steady_rows(analysis)
    if (rows.ints("group_size") == 1).all():
        return None
    missing = missing_ranks_gap(analysis, Cause.STRAGGLER_RANK)
    if missing:
        return missing
    own = measure_own_time(analysis)
    seen = [late for late in _candidates(analysis, own) if _is_seen(late)]
    decided = [late for late in seen if late.suspect.chance < _MAX_CHANCE]
    if not decided:
        return _undecided_gap(analysis, own, seen)
    late = decided[0]
    if _is_delay_passed_on(analysis, late.suspect.named):
        reason = f"rank {late.suspect.rank} is late because of another rank, which could hardly be "
        "compared with others"
        return untested_gap(
            Cause.STRAGGLER_RANK, reason, "record again, and check which collectives were not matched"
        )
    return _finding(analysis, late)


def _candidates(analysis: RunAnalysis, own: OwnTime) -> Iterator[_LateRank]:
    """Yield the latest rank by its total own time, then by each part."""
    for suspect in (find_suspect(analysis, own), *find_suspects_by_part(analysis, own)):
        yield _measure(analysis, own, suspect)


def _undecided_gap(analysis: RunAnalysis, own: OwnTime, seen: Sequence[_LateRank]) -> Gap | None:
    """Return a gap if late ranks cannot be ruled out, None if one above low confidence would have shown."""
    doubtful = [late.suspect for late in seen if _cost_ns(late) >= _COST_RATIO * late.wall_ns]
    if doubtful:
        suspect = doubtful[0]
        what = f"by {suspect.part} alone " if suspect.part else ""
        reason = (
            f"rank {suspect.rank} is {what}{format_ns(suspect.delay_ns)} late in the median step, which over "
        )
        return untested_gap(
            Cause.STRAGGLER_RANK, f"{reason}{suspect.steps} steps may be chance", "record more steps"
        )
    idle = measure_own_time_with_idle(analysis)
    if not own.is_host_known and _is_seen(_measure(analysis, idle, find_suspect(analysis, idle))):
        reason = (
            "a rank is idle while others wait for it, and it is unknown if its host is slower than theirs"
        )
        remedy = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on all ranks"
        return untested_gap(Cause.STRAGGLER_RANK, reason, remedy)
    unseen = find_suspect(analysis, own).error_ns
    if unseen <= _UNSEEN_RATIO * mean_wall_ns(analysis):
        return None
    reason = f"steps differ so much that a rank late by less than {format_ns(unseen)} would not be visible"
    return untested_gap(Cause.STRAGGLER_RANK, reason, "record more steps, or on a quieter machine")


def missing_ranks_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Return the gap of a rule about late ranks that lacks ranks or matched steps, None if it has enough."""
    if len(analysis.run.ranks_loaded) < analysis.run.world_size:
        # Complete groups do not help: a rank that is late there may only pass on a delay.
        reason = "ranks are missing, so the rank that arrived last is unknown"
        return untested_gap(cause, reason, "record or import all ranks")
    rows = select_steady_rows(analysis)
    matched = rows.at(rows.bools("matched"))
    met = Groups(matched.ints("step"), matched.ints(INSTANCE))
    met_steps = matched.ints("step")[met.first[met.count_distinct(matched.ints("rank")) >= 2]]
    ranks = analysis.steps.ints("rank")
    alike = analysis.steps.group_by("step").count_distinct(ranks) == len(np.unique(ranks))
    steps = min(len(np.unique(met_steps)), int(alike.sum()))
    if steps >= _MIN_STEPS:
        return None
    reason = f"collectives of all ranks were matched in only {steps} steps, but {_MIN_STEPS} are needed"
    return untested_gap(cause, reason, "record more steps")


def _is_delay_passed_on(analysis: RunAnalysis, late: tuple[int, ...]) -> bool:
    """Return True if most of the waiting that the ranks are blamed for started on another rank."""
    rows = select_steady_rows(analysis)
    blamed = rows.at(np.isin(rows.ints("blamed_rank"), late))
    wait_ns = blamed.ints("wait_ns")
    elsewhere = wait_ns[~np.isin(blamed.ints("origin_rank"), late)].sum()
    return bool(elsewhere > wait_ns.sum() / 2)


def _measure(analysis: RunAnalysis, own: OwnTime, suspect: Suspect) -> _LateRank:
    place = own.ranks.index(suspect.rank)
    reason = find_reason(
        analysis,
        suspect.named,
        compute_ns=float(np.median(own.compute[:, place])),
        copies_ns=float(np.median(own.copies[:, place])),
        idle_ns=float(np.median(own.idle[:, place])),
    )
    waits = measure_waits(analysis, suspect.named)
    return _LateRank(suspect=suspect, waits=waits, reason=reason, wall_ns=mean_wall_ns(analysis))


def _is_seen(late: _LateRank) -> bool:
    """Return True if a rank is late and costs the others time; it may still be chance."""
    suspect = late.suspect
    return (
        suspect.delay_ns > suspect.floor_ns
        and suspect.last_ratio >= _LAST_RATIO
        and _cost_ns(late) >= _MIN_STEP_RATIO * late.wall_ns
    )


def _cost_ns(late: _LateRank) -> float:
    """Return the cost to the others; for a part of the own time, at most the lengthening of the step."""
    cost = min(late.suspect.delay_ns, late.waits.bound_ns)
    return min(cost, late.suspect.beyond_ns) if late.suspect.part else cost


def _finding(analysis: RunAnalysis, late: _LateRank) -> Finding:
    suspect, waits = late.suspect, late.waits
    share = round(suspect.last_ratio * suspect.steps)
    why = (
        explain_queue(suspect)
        if suspect.lacks_processors
        else explain_lateness(analysis, late.reason, (suspect.rank, *suspect.named), suspect.delay_ns)
    )
    return make_finding(
        analysis,
        Cause.STRAGGLER_RANK,
        sentence=f"{_name_ranks(suspect.named)} {format_ns(suspect.delay_ns)} late in {share} of "
        f"{suspect.steps} "
        f"steps because {why.text}: {_describe_waits(waits, suspect, analysis.time.basis)}",
        evidence=[*_evidence(suspect, waits), *why.evidence],
        saving_ns=(0.0, _cost_ns(late)),
        severity=rate_severity(_cost_ns(late), late.wall_ns),
        confidence=_confidence(late),
        fix=why.fix,
        disprove=why.disprove,
        location=why.location,
    )


def _describe_waits(waits: CausedWaits, suspect: Suspect, basis: str) -> str:
    """Describe the exposed wait per waiting rank, for all late ranks together."""
    late = len(suspect.named)
    who = "the other rank waits" if waits.ranks == 1 else f"each of {waits.ranks} ranks waits"
    whom = "it" if late == 1 else f"these {late} ranks together"
    return f"{who} {format_ns(waits.caused_ns)} {basis} for {whom}, exposed"


def _name_ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    more = len(ranks) - _MAX_NAMED_RANKS
    named = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED_RANKS])
    return f"ranks {named} and {more} more are" if more > 0 else f"ranks {named} are"


def _evidence(suspect: Suspect, waits: CausedWaits) -> list[Fact]:
    rank = suspect.rank
    return [
        make_fact("own_time_excess", suspect.delay_ns, rank=rank),
        make_fact("noise_floor/late", suspect.floor_ns),
        make_fact("own_time_excess_over_all", suspect.beyond_ns, rank=rank),
        make_fact(STEPS_LATEST_RATIO, suspect.last_ratio, rank=rank),
        make_fact("noise_probability", suspect.chance),
        make_fact(
            "wait_caused_per_step/together" if len(suspect.named) > 1 else "wait_caused_per_step",
            waits.caused_ns,
        ),
        make_fact("wait_caused_with_hidden", waits.caused_hidden_too_ns),
        make_fact("waiting_ranks", waits.ranks),
    ]


def _confidence(late: _LateRank) -> Confidence:
    suspect = late.suspect
    if suspect.lacks_processors or _cost_ns(late) < _COST_RATIO * late.wall_ns:
        return Confidence.LOW
    for confidence, (chance, errors) in (
        (Confidence.HIGH, _HIGH_LIMITS),
        (Confidence.MEDIUM, _MEDIUM_LIMITS),
    ):
        if suspect.chance < chance and suspect.delay_ns > errors * suspect.error_ns:
            return confidence
    return Confidence.LOW
