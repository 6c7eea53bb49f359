"""Explain the time metrics: the step ledger per rank (this run and baseline) and per step."""

from msgspec import Struct

from zprof.model.metrics.metric import Better, Metric
from zprof.model.time import LEDGER_NAMES, LEDGER_TERMS


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
