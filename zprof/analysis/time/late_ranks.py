"""Find the rank or the few ranks that are busy longer than the others, their cost, and the reason.

The sum of compute, copies and idle time gives the cost of a delay. But one part that varies between steps
hides the others: a host that sleeps 40 ms in each step is invisible in a sum whose compute varies by 100 ms.
So each part is also tested by itself, and its chance is multiplied by the number of parts. The reason is the
ledger term in which the late rank exceeds the others. For idle time, the late reasons of its collectives
(:mod:`zprof.analysis.time.critical_path`) identify the responsible host calls.
"""

from collections.abc import Sequence
from math import comb, exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import (
    INSTANCE,
    RunAnalysis,
    Untested,
    count_steps,
    get_clock_uncertainty_ns,
    make_untested,
    max_noise_floor_ns,
    mean_wall_ns,
    select_steady_rows,
)
from zprof.analysis.columns import Columns, Floats, Groups
from zprof.analysis.time.own_time import OwnTime, Table, measure_own_time, measure_own_time_with_idle
from zprof.model.time import LateReason

_PARTS = ("compute", "copies", "idle")
_ABOVE_NOISE = 3
_ABOVE_CLOCK = 10
#: Ranks with at least this share of the latest rank's delay are late together with it (same host or switch).
_WITH_IT_RATIO = 0.5
#: Ranks that share a host's cores are late by scheduler time slices: 1.3 ms in the median of healthy gloo
#: runs, 4.4 ms at worst. Three times the median gives no false positives on a CPU. The floor is lower if
#: compute times vary too little for such time slices; real gloo runs deviate by 2 to 57 ms (MAD).
_SCHEDULER_NS = 4_000_000
_SCHEDULER_DEVIATIONS = 4
#: Three standard errors of a median over n steps are 3 * 1.25 * 1.48 / sqrt(n) deviations (MAD).
_STANDARD_ERRORS = 3 * 1.25 * 1.48
#: With more steps, two ranks are compared by counting; 16 differences have 65,536 combinations of signs.
_MAX_SIGNED_STEPS = 16
_ROUNDING_RATIO = 1e-9
#: Minimum share of a delay, or of the waiting, that one reason must explain.
_MAJORITY_RATIO = 0.5
#: Minimum share of steps in which a late rank is the latest, and minimum cost as a share of the step: first
#: to be detected, then for more than low confidence.
_LAST_RATIO, _MIN_STEP_RATIO, MIN_SURE_COST_RATIO = 0.60, 0.02, 0.05
#: A run is not reported as free of late ranks if noise would hide a delay of this share of the step.
_UNSEEN_RATIO = 0.10
#: Minimum number of steps in which all ranks can be compared.
_MIN_STEPS = 3
#: Reasons that can be identified from the host's calls.
_HOST_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
#: Minimum excess of a late rank, in median deviations of the others: of eight equal ranks, the latest
#: deviates by two to three.
_ABOVE_OTHERS = 4


class Suspect(Struct, frozen=True, kw_only=True):
    """The latest rank ``rank``; ``chosen``: mask of it and the ranks late with it, among all ranks.

    ``delay_ns``: median over steps of the excess busy time of ``rank`` over the others; ``error_ns``: random
    error of the median. ``beyond_ns``: mean excess over the longest rank not chosen. ``last_ratio``: share of
    steps in which a chosen rank is the longest. ``chance``: probability that equal ranks look like this.
    ``queued_ns``: median excess time in which the thread of ``rank`` was ready but had no processor; 0 if
    unknown. ``part``: the tested part of the own time; empty for the total.
    """

    rank: int
    chosen: npt.NDArray[np.bool_]
    ranks: tuple[int, ...]
    steps: int
    delay_ns: float
    error_ns: float
    beyond_ns: float
    floor_ns: float
    last_ratio: float
    chance: float
    queued_ns: float = 0.0
    part: str = ""

    @property
    def lacks_processors(self) -> bool:
        """True if the thread waited for a processor during most of the delay."""
        return self.queued_ns > _MAJORITY_RATIO * self.delay_ns

    @property
    def named(self) -> tuple[int, ...]:
        """The late ranks."""
        return tuple(rank for rank, mine in zip(self.ranks, self.chosen.tolist(), strict=True) if mine)


def noise_floor_of_delay_ns(analysis: RunAnalysis) -> float:
    """Return the maximum delay caused by noise, clocks and scheduler time slices."""
    floor_ns = max(
        _ABOVE_NOISE * max_noise_floor_ns(analysis), _ABOVE_CLOCK * get_clock_uncertainty_ns(analysis)
    )
    if analysis.run.device != "cpu":
        return floor_ns
    ranks, compute_ns = analysis.steps.group_by("rank"), analysis.steps.ints("compute_ns")
    deviation = np.abs(compute_ns - ranks.median(compute_ns)[ranks.codes])
    worst = float(ranks.median(deviation).max(initial=0.0))
    return max(floor_ns, min(_SCHEDULER_NS, _SCHEDULER_DEVIATIONS * worst))


def find_suspect(analysis: RunAnalysis, own: OwnTime) -> Suspect:
    """Return the latest rank by its total own time; needs two ranks and one step."""
    found = _find_latest(own, own.longer, noise_floor_of_delay_ns(analysis))
    return replace(
        found,
        beyond_ns=float(own.beyond(found.chosen).mean()),
        chance=min(found.chance, _chance_by_order(own, found.chosen)),
    )


def find_suspects_by_part(analysis: RunAnalysis, own: OwnTime) -> tuple[Suspect, ...]:
    """Return the latest rank by compute, copies and idle time, sorted by decreasing delay.

    A part's cost is the time by which it lengthens the step's longest rank.
    """
    tables = {name: getattr(own, name) for name in _PARTS}
    tables = {name: table for name, table in tables.items() if table.any()}
    found = []
    for name, table in tables.items():
        one = _find_latest(own, table, noise_floor_of_delay_ns(analysis))
        beyond = float(own.without(table, one.chosen).mean())
        chance = min(1.0, one.chance * len(tables))
        found.append(replace(one, part=name, beyond_ns=beyond, chance=chance))
    return tuple(sorted(found, key=lambda suspect: -suspect.delay_ns))


def _find_latest(own: OwnTime, longer: Table, floor: float) -> Suspect:
    medians = np.median(longer, axis=0)
    place = int(np.argmax(medians))
    chosen = medians >= max(_WITH_IT_RATIO * medians[place], floor)
    chosen = chosen if 0 < chosen.sum() <= len(medians) / 2 else np.arange(len(medians)) == place
    mine = longer[:, place]
    late = chosen[np.argmax(longer, axis=1)] & (longer.max(axis=1) > floor)
    return Suspect(
        rank=own.ranks[place],
        chosen=chosen,
        ranks=own.ranks,
        steps=own.steps,
        delay_ns=float(medians[place]),
        error_ns=_STANDARD_ERRORS
        * float(np.median(np.abs(mine - np.median(mine))))
        / float(np.sqrt(own.steps)),
        beyond_ns=0.0,
        floor_ns=floor,
        last_ratio=float(late.mean()),
        chance=min(_chance_by_steps(late, chosen), _chance_by_signs(longer, mine)),
        queued_ns=float(np.median(own.queued[:, place])),
    )


def _chance_by_steps(late: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that this many equal ranks are the latest in this many steps (binomial).

    Computed in logarithms: a thousand steps have more combinations than fit in a float.
    """
    blamed, steps, share = int(late.sum()), len(late), float(chosen.mean())
    ways = _log_comb(len(chosen), int(chosen.sum()))
    logs = (
        ways + _log_comb(steps, late_steps) + late_steps * log(share) + (steps - late_steps) * log1p(-share)
        for late_steps in range(blamed, steps + 1)
    )
    return min(1.0, sum(exp(min(0.0, term)) for term in logs))


def _chance_by_signs(longer: Table, mine: npt.NDArray[np.float64]) -> float:
    """Return the chance of two equal ranks having differences of this sum; 1 unless there are two ranks.

    Each of two equal ranks is the longer one in half of the steps, so all signs of the differences are
    equally likely. Unlike a count of steps, this distinguishes steps in which the other rank is hardly longer
    from steps in which it is late. Each step counts at most as much as the median: a single step proves
    nothing.
    """
    steps, ranks = longer.shape
    limit = float(np.median(mine))
    if ranks != 2 or steps > _MAX_SIGNED_STEPS or limit <= 0:
        return 1.0
    sizes = np.clip(mine, -limit, limit)
    signs = 1 - 2 * ((np.arange(2**steps)[:, None] >> np.arange(steps)) & 1)
    sums = np.abs(signs @ np.abs(sizes))
    return float((sums >= abs(sizes.sum()) * (1 - _ROUNDING_RATIO)).mean())


def _log_comb(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)


def _chance_by_order(own: OwnTime, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that equal ranks' chosen steps all exceed the others'; 1 if they do not.

    With few steps, this is more informative than counting: of all orderings of the step times, 1 in (ranks *
    steps over chosen * steps) has exactly these on top.
    """
    if own.own[:, chosen].min() <= own.own[:, ~chosen].max():
        return 1.0
    late, steps = int(chosen.sum()), own.steps
    return min(1.0, comb(len(chosen), late) / comb(len(chosen) * steps, late * steps))


class CausedWaits(Struct, frozen=True, kw_only=True):
    """The waits caused by late ranks, in ns per step.

    ``bound_ns``: the maximum gain of the median waiting rank without the late ranks. It includes hidden
    waiting: the median over steps, or the mean without the window's first collective if larger.
    ``caused_ns``: wait caused, as elsewhere in the report (``Blame`` of :mod:`zprof.model.time`): exposed
    wait, averaged over the ``ranks`` that waited. ``caused_hidden_too_ns`` includes the part hidden by
    compute.
    """

    bound_ns: float
    caused_ns: float
    caused_hidden_too_ns: float
    ranks: int


def measure_waits(analysis: RunAnalysis, late: tuple[int, ...]) -> CausedWaits:
    """Return the waiting in collectives to which a ``late`` rank arrived last.

    Of many groups, only a few contain a late rank. The others wait for ranks delayed by it.
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
    """Return the waiting ranks' median wait, by step."""
    each = rows.group_by("step", "rank")
    return Groups(rows.ints("step")[each.first]).median(each.sum(rows.ints("wait_ns")))


class LateRank(Struct, frozen=True, kw_only=True):
    """A late rank, the waits that it causes, and the reason."""

    suspect: Suspect
    waits: CausedWaits
    reason: LateReason
    wall_ns: float

    @property
    def cost_ns(self) -> float:
        """The cost to the other ranks; for a part of the own time, at most the lengthening of the step."""
        cost = min(self.suspect.delay_ns, self.waits.bound_ns)
        return min(cost, self.suspect.beyond_ns) if self.suspect.part else cost


def list_late_ranks(analysis: RunAnalysis, own: OwnTime) -> list[LateRank]:
    """Return the latest ranks by total own time and by each part, if they cost the others time.

    They may still be due to chance.
    """
    suspects = (find_suspect(analysis, own), *find_suspects_by_part(analysis, own))
    measured = (_measure_late_rank(analysis, own, suspect) for suspect in suspects)
    return [late for late in measured if _is_seen(late)]


def _measure_late_rank(analysis: RunAnalysis, own: OwnTime, suspect: Suspect) -> LateRank:
    """Measure a suspect's cost to the others, and find the reason of its delay."""
    place = own.ranks.index(suspect.rank)
    return LateRank(
        suspect=suspect,
        waits=measure_waits(analysis, suspect.named),
        reason=find_reason(
            analysis,
            suspect.named,
            compute_ns=float(np.median(own.compute[:, place])),
            copies_ns=float(np.median(own.copies[:, place])),
            idle_ns=float(np.median(own.idle[:, place])),
        ),
        wall_ns=mean_wall_ns(analysis),
    )


def _is_seen(late: LateRank) -> bool:
    """Return True if a rank is late and costs the others time, possibly by chance."""
    suspect = late.suspect
    is_late = suspect.delay_ns > suspect.floor_ns and suspect.last_ratio >= _LAST_RATIO
    return is_late and late.cost_ns >= _MIN_STEP_RATIO * late.wall_ns


def find_doubts(analysis: RunAnalysis, own: OwnTime, seen: Sequence[LateRank]) -> Untested | None:
    """Return why late ranks cannot be ruled out; None if a late rank would have been detected."""
    doubtful = [late.suspect for late in seen if late.cost_ns >= MIN_SURE_COST_RATIO * late.wall_ns]
    if doubtful:
        suspect = doubtful[0]
        return make_untested(
            "late_part_by_chance" if suspect.part else "late_by_chance",
            rank=suspect.rank,
            part=suspect.part,
            delay=suspect.delay_ns,
            steps=suspect.steps,
        )
    idle = measure_own_time_with_idle(analysis)
    if not own.is_host_known and _is_seen(_measure_late_rank(analysis, idle, find_suspect(analysis, idle))):
        return make_untested("idle_rank_unknown")
    unseen_ns = find_suspect(analysis, own).error_ns
    if unseen_ns <= _UNSEEN_RATIO * mean_wall_ns(analysis):
        return None
    return make_untested("steps_differ", unseen=unseen_ns)


def find_missing_ranks(analysis: RunAnalysis) -> Untested | None:
    """Return why ranks cannot be compared (missing ranks or matched steps); None if they can."""
    if len(analysis.run.ranks_loaded) < analysis.run.world_size:
        # Complete groups do not help: a rank that is late there may only be passing on a delay.
        return make_untested("last_rank_unknown")
    rows = select_steady_rows(analysis)
    matched = rows.at(rows.bools("matched"))
    met = Groups(matched.ints("step"), matched.ints(INSTANCE))
    met_steps = matched.ints("step")[met.first[met.count_distinct(matched.ints("rank")) >= 2]]
    ranks = analysis.steps.ints("rank")
    alike = analysis.steps.group_by("step").count_distinct(ranks) == len(np.unique(ranks))
    steps = min(len(np.unique(met_steps)), int(alike.sum()))
    if steps >= _MIN_STEPS:
        return None
    return make_untested("few_matched_steps", steps=steps, needed=_MIN_STEPS)


def is_delay_passed_on(analysis: RunAnalysis, late: tuple[int, ...]) -> bool:
    """Return True if most of the waiting blamed on these ranks originated on other ranks."""
    rows = select_steady_rows(analysis)
    blamed = rows.at(np.isin(rows.ints("blamed_rank"), late))
    wait_ns = blamed.ints("wait_ns")
    elsewhere = wait_ns[~np.isin(blamed.ints("origin_rank"), late)].sum()
    return bool(elsewhere > wait_ns.sum() / 2)


def find_reason(
    analysis: RunAnalysis, late: tuple[int, ...], *, compute_ns: float, copies_ns: float, idle_ns: float
) -> LateReason:
    """Return the reason that explains most of a delay.

    Args:
        analysis: The run, whose collectives have reasons from the host's calls.
        late: The late ranks.
        compute_ns: Their excess compute.
        copies_ns: Their excess copy time.
        idle_ns: Their excess idle time.
    """
    # The shares of the waiting for these ranks by reason, for delays that originated on them.
    rows = analysis.collectives
    mine = rows.at(np.isin(rows.ints("blamed_rank"), late) & np.isin(rows.ints("origin_rank"), late))
    reasons = mine.group_by("late_reason")
    sums = reasons.sum(mine.ints("wait_ns"))
    total = float(sums.sum())
    names = mine.texts("late_reason").at(reasons.first)
    shares = dict(zip(names, (sums / total).tolist(), strict=True)) if total > 0 else {}
    called = max(_HOST_REASONS, key=lambda call: shares.get(call, 0.0))
    explained = shares.get(called, 0.0) >= _MAJORITY_RATIO
    if idle_ns >= max(compute_ns, copies_ns):
        return called if explained else LateReason.HOST
    if called is LateReason.DATA and explained:
        return called  # a loader on the main thread computes too
    return LateReason.COMPUTE if compute_ns >= copies_ns else LateReason.MEMCPY


class RankTurns(Struct, frozen=True, kw_only=True):
    """The latest ranks of each step and their cost, as means over steps.

    ``floor_ns``: the delay that noise can cause. ``late_ratio``: share of steps with a clearly late rank;
    ``late``: these ranks. Shares of the cost: ``idle_ratio`` without compute, ``main_ratio`` on the rank with
    the largest share, ``queued_ratio`` ready but without a processor.
    """

    cost_ns: float
    floor_ns: float
    late_ratio: float
    idle_ratio: float
    main_ratio: float
    queued_ratio: float
    late: tuple[int, ...]
    ranks: int
    steps: int


def measure_rank_turns(analysis: RunAnalysis) -> RankTurns:
    """Measure the cost of the latest rank of each step; needs two ranks and one step."""
    own = measure_own_time(analysis)
    floor_ns = noise_floor_of_delay_ns(analysis)
    step, latest = np.arange(own.steps), np.argmax(own.own, axis=1)
    cost = own.longer[step, latest]
    is_late = cost > np.maximum(floor_ns, _ABOVE_OTHERS * _measure_deviation_of_others(own))
    idle = np.minimum(cost, (own.idle + own.copies)[step, latest])
    queued = np.clip(own.queued[step, latest], 0.0, cost)
    on_rank = np.bincount(latest, weights=cost * is_late, minlength=len(own.ranks))
    total = float(cost.sum())
    return RankTurns(
        cost_ns=float((cost * is_late).mean()),
        floor_ns=floor_ns,
        late_ratio=float(is_late.mean()),
        idle_ratio=float((idle * is_late).sum()) / total if total else 0.0,
        main_ratio=float(on_rank.max()) / total if total else 0.0,
        queued_ratio=float((queued * is_late).sum()) / float((cost * is_late).sum())
        if is_late.any()
        else 0.0,
        late=tuple(own.ranks[place] for place in np.unique(latest[is_late]).tolist()),
        ranks=len(own.ranks),
        steps=own.steps,
    )


def _measure_deviation_of_others(own: OwnTime) -> Floats:
    """Return, for each step, the median deviation of all ranks except the latest from their median."""
    others = np.sort(own.own, axis=1)[:, :-1]
    middle = np.median(others, axis=1, keepdims=True)
    return np.median(np.abs(others - middle), axis=1)
