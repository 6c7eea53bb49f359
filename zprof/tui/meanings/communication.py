"""Leaves of collectives: waiting and moving, what is exposed, delays, bandwidths."""

from zprof.tui.meanings.communication_checks import CHECKS
from zprof.tui.meanings.communication_parts import PARTS
from zprof.tui.meanings.communication_rows import of_collective
from zprof.tui.meanings.communication_words import BUS, EXPOSED, INTRINSIC, MEAN, STEADY
from zprof.tui.meanings.meaning import Meaning

_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")


def _collective(
    leaf: str, title: str, says: str, columns: tuple[str, ...], by: str, *, formula: str = "",
    inputs: tuple[str, ...] = (),
) -> Meaning:  # fmt: skip
    return Meaning(
        leaf=f"time.collectives[].{leaf}",
        title=title,
        says=says,
        formula=formula,
        inputs=inputs,
        rows=of_collective(columns, by),
    )


_COLLECTIVES = (
    _collective(
        "count",
        "collectives a step",
        f"How many ran on a rank; times ranks and steps they are the rows below. {MEAN} {STEADY}",
        ("bytes", "duration_ns"),
        "duration_ns",
    ),
    _collective(
        "bytes",
        "bytes a step",
        f"Of the full tensors: the gathered size of an all-gather, what goes into a reduce-scatter. {MEAN}",
        ("bytes", "dtype", "duration_ns"),
        "bytes",
        inputs=("count",),
    ),
    _collective(
        "total_ns",
        "time of these collectives",
        f"From start to end, waiting included. {MEAN} What of it is not exposed is hidden: it ran beside "
        "compute, or beside a collective that the time is charged to.",
        ("duration_ns", "wait_ns", "transfer_ns", *_SPLIT),
        "duration_ns",
        formula="total = wait + transfer = hidden + exposed",
        inputs=("wait_ns", "transfer_ns", "exposed_ns"),
    ),
    _collective(
        "exposed_ns",
        "exposed time",
        f"{EXPOSED} {MEAN} {STEADY}",
        (*_SPLIT, "hidden_ns", "duration_ns"),
        "exposed_ns",
        formula="exposed = union(collectives) minus union(compute); = exposed wait + exposed transfer",
        inputs=_SPLIT,
    ),
    _collective(
        "exposed_wait_ns",
        "exposed waiting",
        f"The part of the exposed time before the last rank of the group came: no faster link helps. {MEAN}",
        ("exposed_wait_ns", "wait_ns", "lateness_ns", "last_rank", "late_reason"),
        "exposed_wait_ns",
        formula="exposed wait = exposed, before S, the latest start of all ranks on the common clock",
        inputs=("exposed_ns", "exposed_transfer_ns"),
    ),
    _collective(
        "exposed_transfer_ns",
        "exposed transfer",
        "The part of the exposed time after the last rank of the group came: bytes move, nothing computes. "
        f"{MEAN} {STEADY}",
        ("exposed_transfer_ns", "transfer_ns", "bytes", "hidden_ns"),
        "exposed_transfer_ns",
        formula="exposed transfer = exposed, after S, the latest start of all ranks on the common clock",
        inputs=("exposed_ns", "exposed_wait_ns"),
    ),
    _collective(
        "wait_ns",
        "waiting for the last rank",
        "The part of the collective before the last rank of the group came, hidden or not. Where ranks are "
        f"missing S is only known from below: at least this. {MEAN}",
        ("wait_ns", "duration_ns", "lateness_ns", "last_rank", "late_reason"),
        "wait_ns",
        formula="S = latest aligned start over the ranks; wait = max(0, min(S, end) - start)",
        inputs=("total_ns", "transfer_ns"),
    ),
    _collective(
        "transfer_ns",
        "moving bytes",
        "The part of the collective after the last rank of the group came, hidden or not. Where ranks are "
        f"missing: at most this. What of it is exposed is the exposed transfer. {MEAN} {STEADY}",
        ("transfer_ns", "bytes", "duration_ns", "intrinsic_ns"),
        "transfer_ns",
        formula="S = latest aligned start over the ranks; transfer = end - max(S, start)",
        inputs=("total_ns", "wait_ns"),
    ),
    _collective(
        "launch_delay_ns",
        "launch delay",
        "From the begin of the host's call to the start, median of one collective. The part in dependency_ns "
        "it had to wait for compute or for the collective before it; the rest is the queue and the host.",
        ("launch_delay_ns", "dependency_ns"),
        "launch_delay_ns",
        formula="launch delay = start - launch = dependency + rest",
        inputs=("dependency_ns",),
    ),
    _collective(
        "dependency_ns",
        "what it had to wait for",
        "Median part of the launch delay until the last compute kernel that was launched before it, and the "
        "collective before it in its stream, had ended: the latest that it can be.",
        ("dependency_ns", "launch_delay_ns"),
        "dependency_ns",
        inputs=("launch_delay_ns",),
    ),
    _collective(
        "tail_ns",
        "tail",
        "From a rank's own end to the last rank's end, median. Long where ranks leave one after another.",
        ("tail_ns", "duration_ns"),
        "tail_ns",
        formula="tail = latest end over the ranks - end",
    ),
    _collective(
        "intrinsic_ns",
        "intrinsic time",
        INTRINSIC,
        ("intrinsic_ns", "bytes", "duration_ns"),
        "intrinsic_ns",
        formula="T = first end - last start",
    ),
    _collective(
        "algbw_bytes_per_s",
        "algorithm bandwidth",
        "As the caller sees it: bytes of the full tensor over the intrinsic time. Median over the "
        "collectives; unknown where the clocks do not resolve them.",
        ("bytes", "intrinsic_ns"),
        "bytes",
        formula="algorithm bandwidth = bytes / (first end - last start)",
        inputs=("intrinsic_ns", "busbw_bytes_per_s"),
    ),
    _collective(
        "busbw_bytes_per_s",
        "bus bandwidth",
        BUS,
        ("bytes", "intrinsic_ns"),
        "bytes",
        formula="bus bandwidth = algorithm bandwidth x factor of the kind",
        inputs=("algbw_bytes_per_s", "group_size"),
    ),
)
COMMUNICATION: tuple[Meaning, ...] = (*_COLLECTIVES, *PARTS, *CHECKS)
