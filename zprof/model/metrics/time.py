"""Explain the metrics of steps and ranks: times, waits, pace."""

from msgspec import Struct

from zprof.model.quantities import Better, Metric, Unit
from zprof.model.time import LEDGER_NAMES, LEDGER_TERMS, LateReason

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


class _Term(Struct, frozen=True, kw_only=True):
    title: str
    help: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    better: Better = Better.LESS
    has_interval: bool = True


_SUM = "wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained"
_SPLIT = "collectives = hidden + exposed wait + exposed transfer"
_RUNNING = ("collective_ns", "overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns")
_TERM_HELP = {
    "wall_ns": _Term(
        title="step time",
        help="Time from the start of a step to the start of the next one, averaged over the steps of the "
        "window.",
        formula=_SUM,
        inputs=LEDGER_TERMS,
    ),
    "compute_ns": _Term(
        title=LEDGER_NAMES["compute_ns"],
        help="Time in which the rank computes: on a device, kernels other than communication; on a CPU rank, "
        "operators of the main thread. Overlapping compute counts once. Communication and copies that "
        "overlap compute are hidden.",
        formula="length of the union of all compute spans within the step, mean over steps",
        inputs=("wall_ns", "noise_floor_ns"),
    ),
    "exposed_wait_ns": _Term(
        title=LEDGER_NAMES["exposed_wait_ns"],
        help="Time in which the rank only waits, in a collective that another rank has not entered yet. No "
        "data moves during this time: it is caused by the late rank, not by the link.",
        formula="time in collectives before the last rank starts, not overlapped by compute",
        inputs=_RUNNING,
    ),
    "exposed_transfer_ns": _Term(
        title=LEDGER_NAMES["exposed_transfer_ns"],
        help="Time in which all ranks have entered a collective and this rank does not compute: only data "
        "moves. Overlapping it with compute, moving fewer bytes, or a faster link reduces it.",
        formula="time in collectives after the last rank starts, not overlapped by compute",
        inputs=_RUNNING,
    ),
    "exposed_memcpy_ns": _Term(
        title=LEDGER_NAMES["exposed_memcpy_ns"],
        help="Time in which the device only copies or fills memory; neither compute kernels nor collectives "
        "run.",
        formula="time in copies and fills, not overlapped by compute or collectives",
        inputs=("memcpy_ns", "wall_ns"),
    ),
    "idle_ns": _Term(
        title=LEDGER_NAMES["idle_ns"],
        help="The remaining time: no compute, no copy, and the rank does not wait for a collective. On a "
        "device, the host has not submitted work; on a CPU rank, this is Python code, launches and thread "
        "wake-ups.",
        formula="idle = wall - compute - exposed wait - exposed transfer - exposed copies - unexplained",
        inputs=("wall_ns", *(term for term in LEDGER_TERMS if term != "idle_ns")),
    ),
    "unexplained_ns": _Term(
        title=LEDGER_NAMES["unexplained_ns"],
        help="Time that the trace does not account for: before its first and after its last event, waits "
        "during which no recorded collective runs, and communication kernels that match no recorded "
        "collective.",
        formula="time within the step that no known event covers",
        inputs=("wall_ns",),
    ),
    "overlapped_ns": _Term(
        title="hidden",
        help="Time in collectives that does not delay the rank: compute runs concurrently, or, on a CPU "
        "rank, Python code continues to run.",
        formula=_SPLIT,
        inputs=("collective_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        better=Better.NEITHER,
    ),
    "collective_ns": _Term(
        title="collectives",
        help="Time in which at least one collective runs, hidden or exposed. Overlapping collectives count "
        "once.",
        formula=_SPLIT,
        inputs=("overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        better=Better.NEITHER,
    ),
    "overlap_ratio": _Term(
        title="hidden share",
        help="Share of the time in collectives that is hidden. Unknown if the rank ran no collective.",
        formula="hidden / collectives",
        inputs=("overlapped_ns", "collective_ns"),
        better=Better.MORE,
    ),
    "wall_median_ns": _Term(
        title="median step time",
        help="Median of the step times. If the mean is far above it, a few long steps dominate the mean.",
        inputs=("wall_ns", "steps"),
    ),
    "memcpy_ns": _Term(
        title="copies",
        help="Time of all copies and fills on the device, hidden or exposed.",
        inputs=("exposed_memcpy_ns",),
    ),
    "first_wait_ns": _Term(
        title="exposed wait in first collectives",
        help="Exposed wait in the first collective of each group in the window. It includes profiler "
        "start-up and is not caused by the program.",
        inputs=("exposed_wait_ns",),
        better=Better.NEITHER,
        has_interval=False,
    ),
    "unsplit_ns": _Term(
        title="wait and transfer not separable",
        help="Exposed time in collectives that were not recorded on all ranks. For these, the wait is a "
        "lower bound and the transfer an upper bound.",
        inputs=("exposed_wait_ns", "exposed_transfer_ns"),
        better=Better.NEITHER,
        has_interval=False,
    ),
    "noise_floor_ns": _Term(
        title="noise floor",
        help="Terms smaller than this are not significant: timestamps are accurate to about 1 µs, and the "
        "last rank's arrival is known to within twice the clock uncertainty.",
        better=Better.NEITHER,
        has_interval=False,
    ),
    "steps": _Term(
        title="steps",
        help="Number of steps in the means.",
        better=Better.NEITHER,
    ),
}


def _make_help(stem: str) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            path=f"{stem}.{name}",
            title=term.title,
            help=term.help,
            formula=term.formula,
            inputs=term.inputs,
            better=term.better,
            has_interval=term.has_interval,
        )
        for name, term in _TERM_HELP.items()
    )


TIME: tuple[Metric, ...] = (*_make_help("time.per_rank[]"), *_make_help("comparison.baseline_time[]"))


def _make_step(name: str, title: str, help: str) -> Metric:
    inputs = LEDGER_TERMS if name == "wall_ns" else ("wall_ns",)
    formula = _SUM if name in ("wall_ns", *LEDGER_TERMS) else ""
    return Metric(path=f"time.steps[].{name}", title=title, help=help, formula=formula, inputs=inputs)


STEPS: tuple[Metric, ...] = (
    _make_step(
        "wall_ns", "step time", "Time from the start of this step to the start of the next one, on this rank."
    ),
    _make_step(
        "compute_ns",
        "compute in a step",
        "Union of all kernels other than communication; on a CPU rank, of the operators of the main thread.",
    ),
    _make_step(
        "exposed_transfer_ns",
        "exposed transfer in a step",
        "Time in collectives after all ranks have arrived, while this rank is blocked and does not compute.",
    ),
    _make_step(
        "exposed_wait_ns",
        "exposed wait in a step",
        "Time in collectives before the last rank has arrived, while this rank is blocked.",
    ),
    _make_step(
        "exposed_memcpy_ns",
        "exposed copies in a step",
        "Time in which copies and fills run, but neither compute nor a collective.",
    ),
    _make_step(
        "idle_ns",
        "idle time in a step",
        "The remaining time: the device has no work, or the main thread runs no operator and does not wait "
        "for a collective.",
    ),
    _make_step(
        "unexplained_ns",
        "unexplained time in a step",
        "Time that the trace does not account for, including waits during which no recorded collective runs.",
    ),
    _make_step(
        "overlapped_ns",
        "hidden communication in a step",
        "Time in collectives that does not delay the rank. It is not one of the terms that sum to the step "
        "time.",
    ),
)
