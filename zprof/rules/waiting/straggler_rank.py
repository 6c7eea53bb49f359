"""ZP301 straggler_rank: one rank is late, step after step, and the others wait for it.

Signal: the rank's *delay*, how much longer than the median of the others it is busy with itself in a step
(:mod:`zprof.rules.waiting.own_time`).  Some rank is always last, so being last accuses nobody; and exposed
wait alone is not the cost: where communication only just fits under compute, the others' waits hide there
(a 12 % slower rank cost 9 % of the step with 1 % of exposed wait).  The delay sees both.

Where compute swings from step to step the sum of it and idle time says nothing, and each is looked at by
itself (:mod:`zprof.rules.waiting.suspect`).  What may be chance, and swings in which a costly delay would not
show, are said as a gap: nobody was cleared.

The delay must stand out from the noise floor, from the clocks' uncertainty and on a CPU from the turns of
the scheduler, be the largest in more steps than chance makes likely, and cost something.  Above low
confidence it is also well beyond three standard errors of its median.

    saving <= min(delay, all waiting of the others for it, hidden or exposed)

because without it the others go on at most as much earlier, and where the link is the limit no rank waits
for another.  A late host also leaves less of its own transfers hidden, which adds to it.  At least half of it
is won: the range held the true saving in all simulated jobs of ``benchmarks.diagnosis``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Change
from zprof.model.time import LateReason
from zprof.model.units import format_ns
from zprof.rules.foreseen import foreseen_ns
from zprof.rules.rows import has_no_collectives, steady, wall_ns
from zprof.rules.rule import finding, not_tested, severity_of
from zprof.rules.waiting.own_time import OwnTime, idle_counted, own_time
from zprof.rules.waiting.suspect import Suspect, suspect_of, suspects_by_part
from zprof.rules.waiting.waits import Waits, waits_for
from zprof.rules.waiting.why import FIXES, SAYS, disprove_of, reason_of

_MIN_STEPS = 3
_LAST_RATIO = 0.60
#: Chance of noise above which nobody is named.
_MAX_CHANCE = 0.10
#: Chance of noise, and delay over its error, for high and for medium confidence.
_SURE = (0.025, 1.5)
_LIKELY = (_MAX_CHANCE, 2.0)
#: Of the step: below the first no finding, below the second one of low confidence.
_WORTH_RATIO = 0.02
_COST_RATIO = 0.05
#: Of the step: where a delay of so much would not show in the noise, a run is not called free of late ranks.
_UNSEEN_RATIO = 0.10
#: Of the upper bound, what is left at least where the link is nearly the limit.
_SURE_RATIO = 0.5
#: What means over steps and edges of intervals add to the upper bound.
_SLACK_RATIO = 1.03
#: Reasons in which the rank's device stands idle, so that less of its own transfers is hidden.
_IDLE = frozenset({LateReason.HOST, LateReason.ALLOCATOR, LateReason.SYNC})
_MOST_NAMED = 4
#: Of the exposed wait caused, how much hidden one is worth a word.
_WORTH_SAYING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """Who, why, and what it costs a step."""

    suspect: Suspect
    waits: Waits
    reason: LateReason
    saving_ns: tuple[float, float]
    wall_ns: float


def straggler_rank(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where one rank is late at collectives and the others pay for it."""
    if has_no_collectives(analysis):
        return not_tested(Cause.STRAGGLER_RANK, "no collective was recorded", "record the time window")
    rows = steady(analysis)
    if rows[rows["group_size"] != 1].empty:
        return None
    missing = missing_input(analysis, Cause.STRAGGLER_RANK)
    if missing:
        return missing
    own = own_time(analysis)
    seen = [late for late in _candidates(analysis, own) if _is_seen(late)]
    decided = [late for late in seen if late.suspect.chance < _MAX_CHANCE]
    if not decided:
        return _undecided(analysis, own, seen)
    late = decided[0]
    if _passed_on(analysis, late.suspect.named):
        reason = f"rank {late.suspect.rank} is late because of another rank, which few were compared with"
        return not_tested(Cause.STRAGGLER_RANK, reason, "record again, and see what was not matched")
    return _finding(late)


def _candidates(analysis: RunAnalysis, own: OwnTime) -> Iterator[_Late]:
    """The latest rank by all of its own time, then by each part of that."""
    for suspect in (suspect_of(analysis, own), *suspects_by_part(analysis, own)):
        yield _measure(analysis, own, suspect)


def _undecided(analysis: RunAnalysis, own: OwnTime, seen: Sequence[_Late]) -> Gap | None:
    """Why nobody can be cleared; None where a late rank that is worth more than a note would have shown."""
    doubtful = [late.suspect for late in seen if _cost_ns(late) >= _COST_RATIO * late.wall_ns]
    if doubtful:
        suspect = doubtful[0]
        what = f"{suspect.part} alone " if suspect.part else ""
        reason = (
            f"rank {suspect.rank} is {what}{format_ns(suspect.delay_ns)} late in the median step, which in "
        )
        return not_tested(
            Cause.STRAGGLER_RANK, f"{reason}{suspect.steps} steps may be chance", "record more steps"
        )
    idle = idle_counted(analysis)
    if not own.is_host_known and _is_seen(_measure(analysis, idle, suspect_of(analysis, idle))):
        reason = (
            "a rank is idle while others wait for it, and whether its host is slower than theirs is not known"
        )
        remedy = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on all ranks"
        return not_tested(Cause.STRAGGLER_RANK, reason, remedy)
    unseen = suspect_of(analysis, own).error_ns
    if unseen <= _UNSEEN_RATIO * wall_ns(analysis):
        return None
    reason = f"steps differ so much that a rank late by less than {format_ns(unseen)} would not show"
    return not_tested(Cause.STRAGGLER_RANK, reason, "record more steps, or on a quieter machine")


def missing_input(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """What the rules about late ranks lack."""
    if len(analysis.run.ranks_loaded) < analysis.run.world_size:
        # Groups that are whole do not help: a rank that is late there may only pass a delay on.
        reason = "ranks are missing: who came last is not known where not all were seen"
        return not_tested(cause, reason, "record, or import, all ranks")
    rows = steady(analysis)
    matched = rows[rows["matched"].astype(bool)]
    met = matched.groupby(["step", "instance"])["rank"].nunique()
    steps = met[met >= 2].index.get_level_values("step").nunique()
    alike = analysis.steps.groupby("step")["rank"].nunique() == analysis.steps["rank"].nunique()
    steps = min(steps, int(alike.sum()))
    if steps >= _MIN_STEPS:
        return None
    reason = f"collectives of all ranks were matched in {steps} steps, {_MIN_STEPS} are needed"
    return not_tested(cause, reason, "record more steps")


def _passed_on(analysis: RunAnalysis, late: tuple[int, ...]) -> bool:
    """Whether most of the waiting that the ranks are blamed for began on another rank."""
    rows = steady(analysis)
    blamed = rows[rows["blamed_rank"].isin(late)]
    elsewhere = blamed.loc[~blamed["origin_rank"].isin(late), "wait_ns"].sum()
    return bool(elsewhere > blamed["wait_ns"].sum() / 2)


def _measure(analysis: RunAnalysis, own: OwnTime, suspect: Suspect) -> _Late:
    place = own.ranks.index(suspect.rank)
    reason = reason_of(
        analysis,
        suspect.named,
        compute_ns=float(np.median(own.compute[:, place])),
        copies_ns=float(np.median(own.copies[:, place])),
        idle_ns=float(np.median(own.idle[:, place])),
    )
    waits = waits_for(analysis, suspect.named)
    return _Late(
        suspect=suspect,
        waits=waits,
        reason=reason,
        saving_ns=_foreseen(analysis, suspect, _saving(analysis, suspect, waits, reason)),
        wall_ns=wall_ns(analysis),
    )


def _foreseen(analysis: RunAnalysis, suspect: Suspect, own: tuple[float, float]) -> tuple[float, float]:
    """Made even it works as long as the median rank, which with two is half the way."""
    several = analysis.run.world_size > 2 * len(suspect.named)
    return foreseen_ns(analysis, Change(even=True), own) if several else own


def _saving(analysis: RunAnalysis, suspect: Suspect, waits: Waits, reason: LateReason) -> tuple[float, float]:
    delay = max(suspect.delay_ns, suspect.mean_ns)
    unhidden = next(
        (rank.exposed_transfer_ns for rank in analysis.time.per_rank if rank.rank == suspect.rank), 0
    )
    most = min(waits.bound_ns, delay + (unhidden if reason in _IDLE else 0))
    least = min(waits.bound_ns, suspect.beyond_ns, delay)
    return (_SURE_RATIO * least, _SLACK_RATIO * most)


def _is_seen(late: _Late) -> bool:
    """Whether a rank is late and the others pay; that may still be chance."""
    suspect = late.suspect
    return (
        suspect.delay_ns > suspect.floor_ns
        and suspect.last_ratio >= _LAST_RATIO
        and _cost_ns(late) >= _WORTH_RATIO * late.wall_ns
    )


def _cost_ns(late: _Late) -> float:
    """What the others pay; of a part of the own time only what the step is longer for it."""
    cost = min(late.suspect.delay_ns, late.waits.bound_ns)
    return min(cost, late.suspect.beyond_ns) if late.suspect.part else cost


def _finding(late: _Late) -> Finding:
    suspect, waits = late.suspect, late.waits
    share = round(suspect.last_ratio * suspect.steps)
    return finding(
        Cause.STRAGGLER_RANK,
        sentence=f"{_who(suspect.named)} {format_ns(suspect.delay_ns)} late in {share} of {suspect.steps} "
        f"steps because {SAYS[late.reason]}: {_they_wait(waits)}",
        evidence=_evidence(suspect, waits),
        saving_ns=late.saving_ns,
        severity=severity_of(late.saving_ns[1], late.wall_ns),
        confidence=_confidence(late),
        fix=FIXES[late.reason],
        disprove=disprove_of(late.reason),
    )


def _they_wait(waits: Waits) -> str:
    """The wait caused, per waiting rank; with what compute hides where that is more."""
    who = "the other rank waits" if waits.ranks == 1 else f"each of {waits.ranks} ranks waits"
    hidden = waits.caused_hidden_too_ns - waits.caused_ns
    more = f", and {format_ns(hidden)} more under compute" if hidden > _WORTH_SAYING * waits.caused_ns else ""
    return f"{who} {format_ns(waits.caused_ns)} a step for it, exposed{more}"


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    more = len(ranks) - _MOST_NAMED
    named = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    return f"ranks {named} and {more} more are" if more > 0 else f"ranks {named} are"


def _evidence(suspect: Suspect, waits: Waits) -> list[Evidence]:
    rank = suspect.rank
    return [
        Evidence(
            what="busy with itself longer than the others, median",
            value=suspect.delay_ns,
            unit="ns",
            rank=rank,
        ),
        Evidence(what="delay that noise and clocks can make", value=suspect.floor_ns, unit="ns"),
        Evidence(
            what="longer than all others together with it", value=suspect.beyond_ns, unit="ns", rank=rank
        ),
        Evidence(what="steps in which it is the latest", value=suspect.last_ratio, unit="ratio", rank=rank),
        Evidence(what="chance that noise does this", value=suspect.chance, unit="ratio"),
        Evidence(what="wait caused a step, per waiting rank", value=waits.caused_ns, unit="ns"),
        Evidence(what="with what compute hides", value=waits.caused_hidden_too_ns, unit="ns"),
        Evidence(what="ranks that wait for it", value=waits.ranks, unit="count"),
    ]


def _confidence(late: _Late) -> Confidence:
    suspect = late.suspect
    if _cost_ns(late) < _COST_RATIO * late.wall_ns:
        return Confidence.LOW
    for confidence, (chance, errors) in ((Confidence.HIGH, _SURE), (Confidence.MEDIUM, _LIKELY)):
        if suspect.chance < chance and suspect.delay_ns > errors * suspect.error_ns:
            return confidence
    return Confidence.LOW
