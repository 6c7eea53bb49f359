"""Explain the communication metrics.

Covers collectives, message sizes, units, link fits, the volume formula and clock alignment.
"""

from zprof.tui.metric_help.communication_rows import (
    make_collective_rows,
    make_message_rows,
    make_unit_rows,
    select_clock_rows,
    select_fit_rows,
    select_matching_rows,
    select_volume_rows,
)
from zprof.tui.metric_help.metric import MetricHelp

_FORMULA = (
    "With P = number of parameters x bytes per element sent, each rank moves 2P per step in stages 0, 1 "
    "and 2, and 3P in stage 3 (arXiv 1910.02054, section 7); in stages 2 and 3 once per micro-batch. An "
    "all-reduce counts twice. The (N-1)/N factor of a ring is omitted from both values. Traffic between "
    "replicas of a shard is not counted."
)
_VOLUME = tuple(
    MetricHelp(
        leaf=f"volume.{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=select_volume_rows
    )
    for leaf, title, says, formula, inputs in (
        (
            "seen_bytes",
            "measured bytes per rank and step",
            f"Mean over the ranks that communicated. {_FORMULA}",
            "",
            ("expected_bytes", "ratio"),
        ),
        (
            "expected_bytes",
            "expected bytes (ZeRO formula)",
            _FORMULA,
            "2P, 2P, 2P, 3P",
            ("seen_bytes", "ratio"),
        ),
        (
            "ratio",
            "measured / expected bytes",
            "Above 1: data is sent more than once. Below 1: less is sent than the formula predicts. "
            f"{_FORMULA}",
            "measured / expected",
            ("seen_bytes", "expected_bytes"),
        ),
    )
)
_SUM = (
    "Sum over all collectives of a step, averaged over the loaded ranks. It equals the ledger's term "
    "except at the edges of the window: a collective is counted entirely in the step that launched it, "
    "whereas the ledger splits time at step boundaries. The rows of individual groups are averages over "
    "the ranks of that group and do not add up to this value."
)
_SUMS = (
    MetricHelp(
        leaf="time.exposed_in_collectives.wait_ns",
        title="exposed wait, all collectives",
        says=_SUM,
        inputs=("transfer_ns",),
        rows=make_collective_rows(
            ("group", "exposed_wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
        ),
    ),
    MetricHelp(
        leaf="time.exposed_in_collectives.transfer_ns",
        title="exposed transfer, all collectives",
        says=_SUM,
        inputs=("wait_ns",),
        rows=make_collective_rows(("group", "exposed_transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_ALIGNMENT = (
    MetricHelp(
        leaf="time.alignment.uncertainty_ns",
        title="clock uncertainty",
        says="Uncertainty of the clock offset, for the worst rank. Clocks are aligned using the collectives "
        "themselves: no rank can finish one before every rank has entered it. Waits shorter than twice this "
        "value are not significant.",
        inputs=("matched", "unmatched"),
        rows=select_clock_rows,
    ),
    MetricHelp(
        leaf="time.alignment.matched",
        title="collectives matched across ranks",
        says="Collectives whose rows were matched on every rank of the group and verified: no rank finished "
        "before another had entered.",
        inputs=("unmatched", "uncertainty_ns"),
        rows=select_matching_rows,
    ),
    MetricHelp(
        leaf="time.alignment.unmatched",
        title="unmatched collectives",
        says="Collectives for which ranks are missing or the match is physically impossible. For these, the "
        "wait is a lower bound and the transfer an upper bound.",
        inputs=("matched",),
        rows=select_matching_rows,
    ),
)
CHECKS_HELP: tuple[MetricHelp, ...] = (*_VOLUME, *_SUMS, *_ALIGNMENT)


MEAN = "Sum per step, averaged over the loaded ranks of the group."
EXCLUDES_FIRST = (
    "Findings exclude the first collective of each group in the window, because it includes profiler "
    "start-up."
)
EXPOSED = (
    "Time in which a collective runs and blocks this rank: on a device, while no compute kernel runs; on a "
    "CPU rank, while the main thread waits. If several collectives overlap, the time is attributed to only "
    "one of them (the one waited for, or the first in the queue), so that they add up to their union."
)
BUS = (
    "Data rate on each link of a ring: the algorithm bandwidth times 2(N-1)/N for an all-reduce, (N-1)/N "
    "for all-gather, reduce-scatter and all-to-all, 1 for broadcast, reduce, send and recv. Compare this "
    "value with the nominal bandwidth of the link; it does not depend on the number of ranks N."
)
INTRINSIC = (
    "From the last rank's start to the first rank's end, on the common clock: an upper bound on the network "
    "time. Median; the first collective of a window and durations below the clock uncertainty are excluded."
)


_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")
_SIZE_ROWS = make_message_rows(("bytes", "duration_ns", *_SPLIT), "exposed_ns")
_MESSAGES = (
    MetricHelp(
        leaf="time.messages[].at_least_bytes",
        title="message size, lower bound",
        says="Size ranges grow by a factor of four, starting at 1 KiB. This is the lower bound (inclusive).",
        inputs=("below_bytes",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].below_bytes",
        title="message size, upper bound",
        says="Size ranges grow by a factor of four, starting at 1 KiB. This is the upper bound (exclusive).",
        inputs=("at_least_bytes",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].count",
        title="messages per size range",
        says=f"Number of messages in this size range. {MEAN}",
        inputs=("at_least_bytes", "below_bytes"),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].exposed_ns",
        title="exposed time per size range",
        says=f"{EXPOSED} {MEAN}",
        inputs=("count",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].busbw_bytes_per_s",
        title="bus bandwidth per size range",
        says=BUS,
        formula="bus bandwidth = bytes / (first end - last start) x factor of the collective, median",
        inputs=("count", "at_least_bytes"),
        rows=make_message_rows(("bytes", "intrinsic_ns"), "bytes"),
    ),
)
_UNITS = (
    MetricHelp(
        leaf="time.units[].count",
        title="collectives of a unit",
        says=f"Collectives that gather or reduce tensors of this wrapped module. {MEAN}",
        rows=make_unit_rows(("bytes", "duration_ns"), "duration_ns"),
    ),
    MetricHelp(
        leaf="time.units[].bytes",
        title="bytes of a unit",
        says=f"Size of the full (unsharded) tensors. {MEAN}",
        inputs=("count",),
        rows=make_unit_rows(("bytes", "duration_ns"), "bytes"),
    ),
    MetricHelp(
        leaf="time.units[].exposed_wait_ns",
        title="exposed wait of a unit",
        says=f"The part of the exposed time before the last rank of the group arrived. {MEAN}",
        formula="exposed wait = exposed time before the latest start over all ranks",
        inputs=("exposed_transfer_ns", "count"),
        rows=make_unit_rows(("exposed_wait_ns", "wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"),
    ),
    MetricHelp(
        leaf="time.units[].exposed_transfer_ns",
        title="exposed transfer of a unit",
        says=f"The part of the exposed time after the last rank of the group arrived. {MEAN}",
        formula="exposed transfer = exposed time after the latest start over all ranks",
        inputs=("exposed_wait_ns", "count"),
        rows=make_unit_rows(("exposed_transfer_ns", "transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_FIT_FORMULA = "time = latency + bytes / algorithm bandwidth"
_FIT = "Robust linear fit (median of slopes) of intrinsic time against message size."
_FITS = tuple(
    MetricHelp(
        leaf=f"time.fits[].{leaf}",
        title=title,
        says=says,
        formula=formula,
        inputs=inputs,
        rows=select_fit_rows,
    )
    for leaf, title, says, formula, inputs in (
        (
            "messages",
            "messages used for the fit",
            "Each message counts once, not once per rank; the first one of each group in the window is "
            f"excluded. {_FIT}",
            "",
            ("sizes",),
        ),
        (
            "sizes",
            "distinct sizes used for the fit",
            f"{_FIT} It requires at least two sizes that differ by a factor of two.",
            "",
            ("messages",),
        ),
        (
            "latency_ns",
            "message latency",
            "Time that a message takes regardless of its size, as observed by the ranks. It includes "
            "scheduling and thread wake-up delays of the processes and may be many times the latency of the "
            f"link. {_FIT}",
            _FIT_FORMULA,
            ("algbw_bytes_per_s", "messages", "sizes", "residual_ratio"),
        ),
        (
            "algbw_bytes_per_s",
            "algorithm bandwidth (fit)",
            f"Bandwidth that large messages approach. {_FIT} Unknown if time does not increase with size.",
            _FIT_FORMULA,
            ("latency_ns", "messages", "sizes", "residual_ratio"),
        ),
        (
            "busbw_bytes_per_s",
            "bus bandwidth (fit)",
            f"{BUS} {_FIT}",
            f"{_FIT_FORMULA}; bus bandwidth = algorithm bandwidth x factor of the collective",
            ("algbw_bytes_per_s", "latency_ns"),
        ),
        (
            "latency_share_ratio",
            "latency share",
            "Share of the messages' total time that is latency. Fewer, larger messages reduce it.",
            "share = messages x latency / sum of their intrinsic times",
            ("latency_ns", "messages"),
        ),
        (
            "residual_ratio",
            "fit residual",
            "Median over the messages. If it is large, message size alone does not explain the times.",
            "|measured - fitted| / measured",
            ("messages",),
        ),
    )
)
BREAKDOWN_HELP: tuple[MetricHelp, ...] = (*_MESSAGES, *_UNITS, *_FITS)


def _collective_help(
    leaf: str, title: str, says: str, columns: tuple[str, ...], by: str, *, formula: str = "",
    inputs: tuple[str, ...] = (),
) -> MetricHelp:  # fmt: skip
    return MetricHelp(
        leaf=f"time.collectives[].{leaf}",
        title=title,
        says=says,
        formula=formula,
        inputs=inputs,
        rows=make_collective_rows(columns, by),
    )


_COLLECTIVES = (
    _collective_help(
        "count",
        "collectives per step",
        "Number per rank; multiplied by ranks and steps, it gives the number of individual collectives. "
        f"{MEAN} {EXCLUDES_FIRST}",
        ("bytes", "duration_ns"),
        "duration_ns",
    ),
    _collective_help(
        "bytes",
        "bytes per step",
        "Size of the full (unsharded) tensors: the output of an all-gather, the input of a reduce-scatter. "
        f"{MEAN}",
        ("bytes", "dtype", "duration_ns"),
        "bytes",
        inputs=("count",),
    ),
    _collective_help(
        "total_ns",
        "total time",
        f"From start to end, including waits. {MEAN} The part that is not exposed is hidden: it overlaps "
        "compute, or another collective that the time is attributed to.",
        ("duration_ns", "wait_ns", "transfer_ns", *_SPLIT),
        "duration_ns",
        formula="total = wait + transfer = hidden + exposed",
        inputs=("wait_ns", "transfer_ns", "exposed_ns"),
    ),
    _collective_help(
        "exposed_ns",
        "exposed time",
        f"{EXPOSED} {MEAN} {EXCLUDES_FIRST}",
        (*_SPLIT, "hidden_ns", "duration_ns"),
        "exposed_ns",
        formula="exposed = union(collectives) - union(compute) = exposed wait + exposed transfer",
        inputs=_SPLIT,
    ),
    _collective_help(
        "exposed_wait_ns",
        "exposed wait",
        "The part of the exposed time before the last rank of the group arrived. A faster link does not "
        f"reduce it. {MEAN}",
        ("exposed_wait_ns", "wait_ns", "lateness_ns", "last_rank", "late_reason"),
        "exposed_wait_ns",
        formula="exposed wait = exposed time before S, the latest start over all ranks on the common clock",
        inputs=("exposed_ns", "exposed_transfer_ns"),
    ),
    _collective_help(
        "exposed_transfer_ns",
        "exposed transfer",
        "The part of the exposed time after the last rank of the group arrived: data moves, and the rank "
        f"does not compute. {MEAN} {EXCLUDES_FIRST}",
        ("exposed_transfer_ns", "transfer_ns", "bytes", "hidden_ns"),
        "exposed_transfer_ns",
        formula="exposed transfer = exposed time after S, the latest start over all ranks on the common "
        "clock",
        inputs=("exposed_ns", "exposed_wait_ns"),
    ),
    _collective_help(
        "wait_ns",
        "wait for the last rank",
        "The part of the collective before the last rank of the group arrived, hidden or exposed. If ranks "
        f"are missing, S is a lower bound, and so is this wait. {MEAN}",
        ("wait_ns", "duration_ns", "lateness_ns", "last_rank", "late_reason"),
        "wait_ns",
        formula="S = latest aligned start over the ranks; wait = max(0, min(S, end) - start)",
        inputs=("total_ns", "transfer_ns"),
    ),
    _collective_help(
        "transfer_ns",
        "transfer time",
        "The part of the collective after the last rank of the group arrived, hidden or exposed. If ranks "
        f"are missing, it is an upper bound. Its exposed part is the exposed transfer. {MEAN} "
        f"{EXCLUDES_FIRST}",
        ("transfer_ns", "bytes", "duration_ns", "intrinsic_ns"),
        "transfer_ns",
        formula="S = latest aligned start over the ranks; transfer = end - max(S, start)",
        inputs=("total_ns", "wait_ns"),
    ),
    _collective_help(
        "launch_delay_ns",
        "launch delay",
        "From the start of the host's call to the start of the collective, median. For dependency_ns of it "
        "the collective waited for compute or for the previous collective; the rest is queueing and host "
        "time.",
        ("launch_delay_ns", "dependency_ns"),
        "launch_delay_ns",
        formula="launch delay = start - launch = dependency + rest",
        inputs=("dependency_ns",),
    ),
    _collective_help(
        "dependency_ns",
        "dependency wait",
        "The part of the launch delay until both the last compute kernel launched before the collective and "
        "the previous collective in its stream have finished: an upper bound. Median.",
        ("dependency_ns", "launch_delay_ns"),
        "dependency_ns",
        inputs=("launch_delay_ns",),
    ),
    _collective_help(
        "tail_ns",
        "tail",
        "From a rank's end to the last rank's end, median. It is long if ranks finish one after another.",
        ("tail_ns", "duration_ns"),
        "tail_ns",
        formula="tail = latest end over the ranks - own end",
    ),
    _collective_help(
        "intrinsic_ns",
        "intrinsic time",
        INTRINSIC,
        ("intrinsic_ns", "bytes", "duration_ns"),
        "intrinsic_ns",
        formula="T = first end - last start",
    ),
    _collective_help(
        "algbw_bytes_per_s",
        "algorithm bandwidth",
        "Bandwidth as seen by the caller: bytes of the full tensor divided by the intrinsic time. Median "
        "over the collectives; unknown if their durations are below the clock uncertainty.",
        ("bytes", "intrinsic_ns"),
        "bytes",
        formula="algorithm bandwidth = bytes / (first end - last start)",
        inputs=("intrinsic_ns", "busbw_bytes_per_s"),
    ),
    _collective_help(
        "busbw_bytes_per_s",
        "bus bandwidth",
        BUS,
        ("bytes", "intrinsic_ns"),
        "bytes",
        formula="bus bandwidth = algorithm bandwidth x factor of the collective",
        inputs=("algbw_bytes_per_s", "group_size"),
    ),
)
COMMUNICATION: tuple[MetricHelp, ...] = (*_COLLECTIVES, *BREAKDOWN_HELP, *CHECKS_HELP)
