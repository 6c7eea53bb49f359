"""Explain the communication metrics.

Covers collectives, message sizes, units, link fits, the volume formula and clock alignment.
"""

from zprof.model.quantities import Better, Metric

_FORMULA = (
    "With P = number of parameters x bytes per element sent, each rank moves 2P per step in stages 0, 1 "
    "and 2, and 3P in stage 3 (arXiv 1910.02054, section 7); in stages 2 and 3 once per micro-batch. An "
    "all-reduce counts twice. The (N-1)/N factor of a ring is omitted from both values. Traffic between "
    "replicas of a shard is not counted."
)
_VOLUME = tuple(
    Metric(
        path=f"volume.{name}",
        better=Better.LESS if name == "seen_bytes" else Better.NEITHER,
        title=title,
        help=help,
        formula=formula,
        inputs=inputs,
    )
    for name, title, help, formula, inputs in (
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
    Metric(
        path="time.exposed_in_collectives.wait_ns",
        title="exposed wait, all collectives",
        help=_SUM,
        inputs=("transfer_ns",),
    ),
    Metric(
        path="time.exposed_in_collectives.transfer_ns",
        title="exposed transfer, all collectives",
        help=_SUM,
        inputs=("wait_ns",),
    ),
)
_ALIGNMENT = (
    Metric(
        path="time.alignment.uncertainty_ns",
        has_interval=False,
        title="clock uncertainty",
        help="Uncertainty of the clock offset, for the worst rank. Clocks are aligned using the collectives "
        "themselves: no rank can finish one before every rank has entered it. Waits shorter than twice this "
        "value are not significant.",
        inputs=("matched", "unmatched"),
    ),
    Metric(
        path="time.alignment.matched",
        title="collectives matched across ranks",
        help="Collectives whose rows were matched on every rank of the group and verified: no rank finished "
        "before another had entered.",
        inputs=("unmatched", "uncertainty_ns"),
    ),
    Metric(
        path="time.alignment.unmatched",
        title="unmatched collectives",
        help="Collectives for which ranks are missing or the match is physically impossible. For these, the "
        "wait is a lower bound and the transfer an upper bound.",
        inputs=("matched",),
    ),
)
_PARTIAL_GROUP = (
    "Sum per step over the collectives of the group with missing ranks that has the most exposed time, "
    "averaged over its loaded ranks. "
)
_PARTIAL = (
    Metric(
        path="time.partial.exposed_ns",
        has_interval=False,
        title="exposed time in an incomplete group",
        help=f"{_PARTIAL_GROUP}It may be waiting for a rank that is not loaded.",
        inputs=("total_ns",),
    ),
    Metric(
        path="time.partial.total_ns",
        has_interval=False,
        title="time in an incomplete group",
        help=f"{_PARTIAL_GROUP}Hidden and exposed.",
        inputs=("exposed_ns",),
    ),
    Metric(
        path="time.partial.bytes",
        has_interval=False,
        title="bytes in an incomplete group",
        help=f"{_PARTIAL_GROUP}Full tensors.",
        inputs=("least_bus_bytes_per_s",),
    ),
    Metric(
        path="time.partial.least_bus_bytes_per_s",
        has_interval=False,
        better=Better.MORE,
        title="least bus bandwidth of an incomplete group",
        help="The bus bandwidth of its collectives if no part of their time is waiting. The link is at least "
        "this fast.",
        formula="bytes x bus factor / time",
        inputs=("bytes", "total_ns", "usual_bus_bytes_per_s"),
    ),
    Metric(
        path="time.partial.usual_bus_bytes_per_s",
        has_interval=False,
        better=Better.NEITHER,
        title="usual bus bandwidth",
        help="What machines with this device reach, within a node or between nodes. Nodes are taken to hold "
        "consecutive ranks.",
        inputs=("least_bus_bytes_per_s",),
    ),
)
CHECKS_HELP: tuple[Metric, ...] = (*_VOLUME, *_SUMS, *_ALIGNMENT, *_PARTIAL)


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
_MESSAGES = (
    Metric(
        path="time.messages[].at_least_bytes",
        title="message size, lower bound",
        help="Size ranges grow by a factor of four, starting at 1 KiB. This is the lower bound (inclusive).",
        inputs=("below_bytes",),
    ),
    Metric(
        path="time.messages[].below_bytes",
        title="message size, upper bound",
        help="Size ranges grow by a factor of four, starting at 1 KiB. This is the upper bound (exclusive).",
        inputs=("at_least_bytes",),
    ),
    Metric(
        path="time.messages[].count",
        title="messages per size range",
        help=f"Number of messages in this size range. {MEAN}",
        inputs=("at_least_bytes", "below_bytes"),
    ),
    Metric(
        path="time.messages[].exposed_ns",
        title="exposed time per size range",
        help=f"{EXPOSED} {MEAN}",
        inputs=("count",),
    ),
    Metric(
        path="time.messages[].busbw_bytes_per_s",
        title="bus bandwidth per size range",
        help=BUS,
        formula="bus bandwidth = bytes / (first end - last start) x factor of the collective, median",
        inputs=("count", "at_least_bytes"),
    ),
)
_UNITS = (
    Metric(
        path="time.units[].count",
        title="collectives of a unit",
        help=f"Collectives that gather or reduce tensors of this wrapped module. {MEAN}",
    ),
    Metric(
        path="time.units[].bytes",
        title="bytes of a unit",
        help=f"Size of the full (unsharded) tensors. {MEAN}",
        inputs=("count",),
    ),
    Metric(
        path="time.units[].exposed_wait_ns",
        title="exposed wait of a unit",
        help=f"The part of the exposed time before the last rank of the group arrived. {MEAN}",
        formula="exposed wait = exposed time before the latest start over all ranks",
        inputs=("exposed_transfer_ns", "count"),
    ),
    Metric(
        path="time.units[].exposed_transfer_ns",
        title="exposed transfer of a unit",
        help=f"The part of the exposed time after the last rank of the group arrived. {MEAN}",
        formula="exposed transfer = exposed time after the latest start over all ranks",
        inputs=("exposed_wait_ns", "count"),
    ),
)
_FIT_FORMULA = "time = latency + bytes / algorithm bandwidth"
_FIT = "Robust linear fit (median of slopes) of intrinsic time against message size."
_FITS = tuple(
    Metric(
        path=f"time.fits[].{name}",
        has_interval=name != "latency_ns",
        title=title,
        help=help,
        formula=formula,
        inputs=inputs,
    )
    for name, title, help, formula, inputs in (
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
BREAKDOWN_HELP: tuple[Metric, ...] = (*_MESSAGES, *_UNITS, *_FITS)


#: For the others, neither direction is better.
_LESS_IS_BETTER = frozenset({
    "bytes", "total_ns", "exposed_ns", "exposed_wait_ns", "exposed_transfer_ns", "wait_ns", "transfer_ns",
})  # fmt: skip


def _make_collective(
    name: str, title: str, help: str, *, formula: str = "", inputs: tuple[str, ...] = ()
) -> Metric:
    return Metric(
        path=f"time.collectives[].{name}",
        title=title,
        help=help,
        formula=formula,
        inputs=inputs,
        better=Better.LESS if name in _LESS_IS_BETTER else Better.NEITHER,
        has_interval=name != "launch_delay_ns",
    )


_COLLECTIVES = (
    _make_collective(
        "count",
        "collectives per step",
        "Number per rank; multiplied by ranks and steps, it gives the number of individual collectives. "
        f"{MEAN} {EXCLUDES_FIRST}",
    ),
    _make_collective(
        "bytes",
        "bytes per step",
        "Size of the full (unsharded) tensors: the output of an all-gather, the input of a reduce-scatter. "
        f"{MEAN}",
        inputs=("count",),
    ),
    _make_collective(
        "total_ns",
        "total time",
        f"From start to end, including waits. {MEAN} The part that is not exposed is hidden: it overlaps "
        "compute, or another collective that the time is attributed to.",
        formula="total = wait + transfer = hidden + exposed",
        inputs=("wait_ns", "transfer_ns", "exposed_ns"),
    ),
    _make_collective(
        "exposed_ns",
        "exposed time",
        f"{EXPOSED} {MEAN} {EXCLUDES_FIRST}",
        formula="exposed = union(collectives) - union(compute) = exposed wait + exposed transfer",
        inputs=_SPLIT,
    ),
    _make_collective(
        "exposed_wait_ns",
        "exposed wait",
        "The part of the exposed time before the last rank of the group arrived. A faster link does not "
        f"reduce it. {MEAN}",
        formula="exposed wait = exposed time before S, the latest start over all ranks on the common clock",
        inputs=("exposed_ns", "exposed_transfer_ns"),
    ),
    _make_collective(
        "exposed_transfer_ns",
        "exposed transfer",
        "The part of the exposed time after the last rank of the group arrived: data moves, and the rank "
        f"does not compute. {MEAN} {EXCLUDES_FIRST}",
        formula="exposed transfer = exposed time after S, the latest start over all ranks on the common "
        "clock",
        inputs=("exposed_ns", "exposed_wait_ns"),
    ),
    _make_collective(
        "wait_ns",
        "wait for the last rank",
        "The part of the collective before the last rank of the group arrived, hidden or exposed. If ranks "
        f"are missing, S is a lower bound, and so is this wait. {MEAN}",
        formula="S = latest aligned start over the ranks; wait = max(0, min(S, end) - start)",
        inputs=("total_ns", "transfer_ns"),
    ),
    _make_collective(
        "transfer_ns",
        "transfer time",
        "The part of the collective after the last rank of the group arrived, hidden or exposed. If ranks "
        f"are missing, it is an upper bound. Its exposed part is the exposed transfer. {MEAN} "
        f"{EXCLUDES_FIRST}",
        formula="S = latest aligned start over the ranks; transfer = end - max(S, start)",
        inputs=("total_ns", "wait_ns"),
    ),
    _make_collective(
        "launch_delay_ns",
        "launch delay",
        "From the start of the host's call to the start of the collective, median. For dependency_ns of it "
        "the collective waited for compute or for the previous collective; the rest is queueing and host "
        "time.",
        formula="launch delay = start - launch = dependency + rest",
        inputs=("dependency_ns",),
    ),
    _make_collective(
        "dependency_ns",
        "dependency wait",
        "The part of the launch delay until both the last compute kernel launched before the collective and "
        "the previous collective in its stream have finished: an upper bound. Median.",
        inputs=("launch_delay_ns",),
    ),
    _make_collective(
        "tail_ns",
        "tail",
        "From a rank's end to the last rank's end, median. It is long if ranks finish one after another.",
        formula="tail = latest end over the ranks - own end",
    ),
    _make_collective(
        "intrinsic_ns",
        "intrinsic time",
        INTRINSIC,
        formula="T = first end - last start",
    ),
    _make_collective(
        "algbw_bytes_per_s",
        "algorithm bandwidth",
        "Bandwidth as seen by the caller: bytes of the full tensor divided by the intrinsic time. Median "
        "over the collectives; unknown if their durations are below the clock uncertainty.",
        formula="algorithm bandwidth = bytes / (first end - last start)",
        inputs=("intrinsic_ns", "busbw_bytes_per_s"),
    ),
    _make_collective(
        "busbw_bytes_per_s",
        "bus bandwidth",
        BUS,
        formula="bus bandwidth = algorithm bandwidth x factor of the collective",
        inputs=("algbw_bytes_per_s", "group_size"),
    ),
)
COMMUNICATION: tuple[Metric, ...] = (*_COLLECTIVES, *BREAKDOWN_HELP, *CHECKS_HELP)
