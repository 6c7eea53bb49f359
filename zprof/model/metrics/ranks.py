"""Explain the rank metrics: lateness, wait caused and suffered, the critical path."""

from zprof.model.metrics.metric import Better, Metric
from zprof.model.quantities import Unit
from zprof.model.time import LateReason

_BLAME = "time.blame.per_rank[]"
_LATENESS = (
    Metric(
        path="time.lateness[].mean_ns",
        title="mean lateness per rank and step",
        help="Mean delay after the first rank of the group on entering the collectives of this step. Only "
        "collectives in which every rank waits for all others and that were recorded on all ranks count; the "
        "first of the window is excluded. Values below the clock uncertainty are not significant.",
        formula="mean of (start - earliest start in the group), on the common clock",
        inputs=("rank", "step", "collectives", "largest_ns"),
    ),
    Metric(
        path="time.lateness[].largest_ns",
        title="largest lateness per rank and step",
        help="Largest delay after the first rank of the group on entering any collective of this step.",
        formula="maximum of (start - earliest start in the group), on the common clock",
        inputs=("rank", "step", "collectives", "mean_ns"),
    ),
)
_BLAME_HELP = (
    Metric(
        path=f"{_BLAME}.wait_ns",
        better=Better.LESS,
        title="wait caused",
        help="Time per step that other ranks wait in collectives at which this rank arrived last, summed "
        "over the waiting ranks.",
        formula="sum of (min(last start, end) - start) over the waiting ranks",
        inputs=("rank", "exposed_wait_ns", "last_ratio"),
    ),
    Metric(
        path=f"{_BLAME}.exposed_wait_ns",
        better=Better.LESS,
        title="exposed wait caused",
        help="The part of the wait caused during which the waiting ranks do not compute, per step, summed "
        "over the waiting ranks. A wait is attributed to this rank only if it arrived last by more than "
        "the clock uncertainty.",
        formula="blamed + tied + unjudged = total exposed wait",
        inputs=("rank", "wait_ns", "last_ratio", "own_wait_ns"),
    ),
    Metric(
        path=f"{_BLAME}.exposed_wait_per_rank_ns",
        better=Better.LESS,
        title="exposed wait caused, per waiting rank",
        help="Exposed wait per step that this rank causes, averaged over the ranks that waited for it: "
        "approximately what each of them would gain if this rank were not late.",
        formula="exposed wait in collectives at which it arrived last / number of waiting ranks",
        inputs=("rank", "exposed_wait_ns", "waiting_ranks", "wait_per_rank_ns"),
    ),
    Metric(
        path=f"{_BLAME}.wait_per_rank_ns",
        better=Better.LESS,
        title="wait caused, per waiting rank",
        help="Wait per step that this rank causes, averaged over the ranks that waited for it, including "
        "waits that are hidden by compute.",
        inputs=("rank", "wait_ns", "waiting_ranks", "exposed_wait_per_rank_ns"),
    ),
    Metric(
        path=f"{_BLAME}.waiting_ranks",
        has_interval=False,
        title="waiting ranks",
        help="Number of ranks that waited in a collective at which this rank arrived last.",
        inputs=("rank", "wait_ns"),
    ),
    Metric(
        path=f"{_BLAME}.last_ratio",
        title="share of collectives arrived last",
        help="Share of the judged collectives with this rank at which it arrived last by more than the clock "
        "uncertainty. Judged: recorded on all ranks, and not the first of the window.",
        formula="collectives at which it arrived last / judged collectives with this rank",
        inputs=("rank", "wait_ns", "exposed_wait_ns"),
    ),
    Metric(
        path=f"{_BLAME}.own_wait_ns",
        has_interval=False,
        title="wait suffered",
        help="This rank's own exposed wait in collectives, per step, regardless of which rank it waited for.",
        inputs=("rank", "wait_ns", "exposed_wait_ns", "last_ratio"),
    ),
    *(
        Metric(
            path=f"{_BLAME}.reasons.{reason.value}",
            own_unit=Unit.NS,
            title=f"wait caused: {reason.value.replace('_', ' ')}",
            help="The part of the exposed wait that this rank causes for this reason: the activity on "
            "which it spent more time than the other ranks since the last common synchronization.",
            inputs=("../rank",),
        )
        for reason in LateReason
    ),
)
_PATH = (
    Metric(
        path="time.critical_path.wall_ns",
        title="critical path",
        help="Length of the chain of dependent work across ranks that determines the end of a step, averaged "
        "over steps. A step gets shorter only if a part of this chain does. It extends from the first rank's "
        "start to the last rank's end and may therefore be slightly longer than the mean step time.",
        formula="sum of the shares",
        inputs=("steps",),
    ),
    Metric(
        path="time.critical_path.shares[].ns",
        title="share of the critical path",
        help="Time on the critical path that one rank spends on one activity, per step. A transfer is "
        "attributed to the rank that waited for it. Shortening work that is not on the critical path saves "
        "nothing.",
        formula="the shares sum to the length of the critical path",
        inputs=("rank",),
    ),
)
RANKS: tuple[Metric, ...] = (*_LATENESS, *_BLAME_HELP, *_PATH)
