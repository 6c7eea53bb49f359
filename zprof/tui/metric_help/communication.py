"""Help on communication.

Collectives, message sizes, units, fitted links, the volume formula, clock alignment.
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
    "With P parameters, of as many bytes as travel, a rank moves 2P per step in stages 0, 1 and 2 and 3P in "
    "stage 3 (arXiv 1910.02054, section 7); stages 2 and 3 in every micro-batch. An all-reduce counts "
    "twice; the ring's (N-1)/N is left out on both sides. Replicas of shards are not counted."
)
_VOLUME = tuple(
    MetricHelp(
        leaf=f"volume.{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=select_volume_rows
    )
    for leaf, title, says, formula, inputs in (
        (
            "seen_bytes",
            "bytes a rank moved in a step",
            f"Mean over the ranks that moved any. {_FORMULA}",
            "",
            ("expected_bytes", "ratio"),
        ),
        ("expected_bytes", "bytes by the formula", _FORMULA, "2P, 2P, 2P, 3P", ("seen_bytes", "ratio")),
        (
            "ratio",
            "bytes against the formula",
            f"Above 1, something travels too often; below, less than by the formula. {_FORMULA}",
            "seen / expected",
            ("seen_bytes", "expected_bytes"),
        ),
    )
)
_SUM = (
    "Of all single collectives of the steps: mean of a step over the loaded ranks, each collective weighted "
    "with its rank. The ledger's term, but for what runs across the ends of the window: a collective "
    "belongs whole to the step that launched it, the ledger cuts time at the steps. Groups of the table "
    "are means over their own ranks, and do not add up to it."
)
_SUMS = (
    MetricHelp(
        leaf="time.exposed_in_collectives.wait_ns",
        title="exposed waiting of all collectives",
        says=_SUM,
        inputs=("transfer_ns",),
        rows=make_collective_rows(
            ("group", "exposed_wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"
        ),
    ),
    MetricHelp(
        leaf="time.exposed_in_collectives.transfer_ns",
        title="exposed transfer of all collectives",
        says=_SUM,
        inputs=("wait_ns",),
        rows=make_collective_rows(("group", "exposed_transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_ALIGNMENT = (
    MetricHelp(
        leaf="time.alignment.uncertainty_ns",
        title="clock uncertainty",
        says="To what the offset of the worst rank's clock is known. Clocks are aligned by the collectives "
        "themselves: no rank can leave one before all have entered. A wait below twice this means nothing.",
        inputs=("matched", "unmatched"),
        rows=select_clock_rows,
    ),
    MetricHelp(
        leaf="time.alignment.matched",
        title="collectives matched across ranks",
        says="The rows of all ranks of the group were found to be one collective, and checked: no rank left "
        "before another had entered.",
        inputs=("unmatched", "uncertainty_ns"),
        rows=select_matching_rows,
    ),
    MetricHelp(
        leaf="time.alignment.unmatched",
        title="collectives not matched",
        says="Ranks are missing, or what was found could not be: of these a wait is at least, a transfer at "
        "most what is shown.",
        inputs=("matched",),
        rows=select_matching_rows,
    ),
)
CHECKS: tuple[MetricHelp, ...] = (*_VOLUME, *_SUMS, *_ALIGNMENT)


MEAN = "Sum of a step, mean over the loaded ranks of its group."
STEADY = (
    "A finding's figure is without the first collective of each group in the window, which carries the start "
    "of the profiler."
)
EXPOSED = (
    "A collective runs and holds this rank up: on a device where no compute kernel runs, on a CPU rank "
    "where the main thread waits. Of several at once one is charged, the one waited for or in front, so "
    "that they sum to their union."
)
BUS = (
    "Bytes that each link of a ring has to carry: the algorithm bandwidth times 2(N-1)/N for an all-reduce, "
    "(N-1)/N for all-gather, reduce-scatter and all-to-all, 1 for broadcast, reduce, send and recv. This is "
    "what to hold against the link's own figure, whatever the number of ranks N."
)
INTRINSIC = (
    "From the last rank's start to the first rank's end, on the common clock: the most that network work "
    "took. The first collective of a window, and what the clocks do not resolve, are left out. Median."
)


_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")
_SIZE_ROWS = make_message_rows(("bytes", "duration_ns", *_SPLIT), "exposed_ns")
_MESSAGES = (
    MetricHelp(
        leaf="time.messages[].at_least_bytes",
        title="message size, from",
        says="Sizes go up in powers of four from 1 KiB; a bar holds those from here to below the next.",
        inputs=("below_bytes",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].below_bytes",
        title="message size, below",
        says="Sizes go up in powers of four from 1 KiB; a bar holds those below this one.",
        inputs=("at_least_bytes",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].count",
        title="messages of a size",
        says=f"How many of this size. {MEAN}",
        inputs=("at_least_bytes", "below_bytes"),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].exposed_ns",
        title="exposed time of messages of a size",
        says=f"{EXPOSED} {MEAN}",
        inputs=("count",),
        rows=_SIZE_ROWS,
    ),
    MetricHelp(
        leaf="time.messages[].busbw_bytes_per_s",
        title="bus bandwidth of messages of a size",
        says=BUS,
        formula="bus bandwidth = bytes / (first end - last start) x factor of the kind, median",
        inputs=("count", "at_least_bytes"),
        rows=make_message_rows(("bytes", "intrinsic_ns"), "bytes"),
    ),
)
_UNITS = (
    MetricHelp(
        leaf="time.units[].count",
        title="collectives of a unit",
        says=f"Of the wrapped module that they gather or reduce for. {MEAN}",
        rows=make_unit_rows(("bytes", "duration_ns"), "duration_ns"),
    ),
    MetricHelp(
        leaf="time.units[].bytes",
        title="bytes of a unit",
        says=f"Of the full tensors. {MEAN}",
        inputs=("count",),
        rows=make_unit_rows(("bytes", "duration_ns"), "bytes"),
    ),
    MetricHelp(
        leaf="time.units[].exposed_wait_ns",
        title="exposed waiting of a unit",
        says=f"The part of the exposed time before the last rank of the group came. {MEAN}",
        formula="exposed wait = exposed, before the latest start of all ranks",
        inputs=("exposed_transfer_ns", "count"),
        rows=make_unit_rows(("exposed_wait_ns", "wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"),
    ),
    MetricHelp(
        leaf="time.units[].exposed_transfer_ns",
        title="exposed transfer of a unit",
        says=f"The part of the exposed time after the last rank of the group came. {MEAN}",
        formula="exposed transfer = exposed, after the latest start of all ranks",
        inputs=("exposed_wait_ns", "count"),
        rows=make_unit_rows(("exposed_transfer_ns", "transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_LINE = "time = latency + bytes / algorithm bandwidth"
_FIT = "A robust line through the intrinsic times of the messages over their sizes (medians of slopes)."
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
            "messages behind the fit",
            f"Each once for all its ranks, the first of each group in the window left out. {_FIT}",
            "",
            ("sizes",),
        ),
        ("sizes", "sizes behind the fit", f"{_FIT} At least two, a factor of two apart.", "", ("messages",)),
        (
            "latency_ns",
            "latency of a message",
            "What a message takes however small it is, as the ranks see it: processes that wait for a "
            f"processor, or wake up late, are in it, and it may be many times the link's. {_FIT}",
            _LINE,
            ("algbw_bytes_per_s", "messages", "sizes", "residual_ratio"),
        ),
        (
            "algbw_bytes_per_s",
            "algorithm bandwidth of the fit",
            f"What a message reaches were it large. {_FIT} Unknown where times do not grow with the size.",
            _LINE,
            ("latency_ns", "messages", "sizes", "residual_ratio"),
        ),
        (
            "busbw_bytes_per_s",
            "bus bandwidth of the fit",
            f"{BUS} {_FIT}",
            f"{_LINE}; bus bandwidth = algorithm bandwidth x factor of the kind",
            ("algbw_bytes_per_s", "latency_ns"),
        ),
        (
            "latency_share_ratio",
            "share of latency",
            "What of all time that these messages took is latency: larger messages would save it.",
            "share = messages x latency / sum of their intrinsic times",
            ("latency_ns", "messages"),
        ),
        (
            "residual_ratio",
            "how far the fit is off",
            "Median over the messages: a large one says that size alone does not explain their times.",
            "|seen - fitted| / seen",
            ("messages",),
        ),
    )
)
PARTS: tuple[MetricHelp, ...] = (*_MESSAGES, *_UNITS, *_FITS)


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
        f"How many ran on a rank; times ranks and steps they are the rows below. {MEAN} {STEADY}",
        ("bytes", "duration_ns"),
        "duration_ns",
    ),
    _collective_help(
        "bytes",
        "bytes per step",
        f"Of the full tensors: the gathered size of an all-gather, what goes into a reduce-scatter. {MEAN}",
        ("bytes", "dtype", "duration_ns"),
        "bytes",
        inputs=("count",),
    ),
    _collective_help(
        "total_ns",
        "time of these collectives",
        f"From start to end, waiting included. {MEAN} What of it is not exposed is hidden: it ran beside "
        "compute, or beside a collective that the time is charged to.",
        ("duration_ns", "wait_ns", "transfer_ns", *_SPLIT),
        "duration_ns",
        formula="total = wait + transfer = hidden + exposed",
        inputs=("wait_ns", "transfer_ns", "exposed_ns"),
    ),
    _collective_help(
        "exposed_ns",
        "exposed time",
        f"{EXPOSED} {MEAN} {STEADY}",
        (*_SPLIT, "hidden_ns", "duration_ns"),
        "exposed_ns",
        formula="exposed = union(collectives) minus union(compute); = exposed wait + exposed transfer",
        inputs=_SPLIT,
    ),
    _collective_help(
        "exposed_wait_ns",
        "exposed waiting",
        f"The part of the exposed time before the last rank of the group came: no faster link helps. {MEAN}",
        ("exposed_wait_ns", "wait_ns", "lateness_ns", "last_rank", "late_reason"),
        "exposed_wait_ns",
        formula="exposed wait = exposed, before S, the latest start of all ranks on the common clock",
        inputs=("exposed_ns", "exposed_transfer_ns"),
    ),
    _collective_help(
        "exposed_transfer_ns",
        "exposed transfer",
        "The part of the exposed time after the last rank of the group came: bytes move, nothing computes. "
        f"{MEAN} {STEADY}",
        ("exposed_transfer_ns", "transfer_ns", "bytes", "hidden_ns"),
        "exposed_transfer_ns",
        formula="exposed transfer = exposed, after S, the latest start of all ranks on the common clock",
        inputs=("exposed_ns", "exposed_wait_ns"),
    ),
    _collective_help(
        "wait_ns",
        "waiting for the last rank",
        "The part of the collective before the last rank of the group came, hidden or not. Where ranks are "
        f"missing S is only known from below: at least this. {MEAN}",
        ("wait_ns", "duration_ns", "lateness_ns", "last_rank", "late_reason"),
        "wait_ns",
        formula="S = latest aligned start over the ranks; wait = max(0, min(S, end) - start)",
        inputs=("total_ns", "transfer_ns"),
    ),
    _collective_help(
        "transfer_ns",
        "moving bytes",
        "The part of the collective after the last rank of the group came, hidden or not. Where ranks are "
        f"missing: at most this. What of it is exposed is the exposed transfer. {MEAN} {STEADY}",
        ("transfer_ns", "bytes", "duration_ns", "intrinsic_ns"),
        "transfer_ns",
        formula="S = latest aligned start over the ranks; transfer = end - max(S, start)",
        inputs=("total_ns", "wait_ns"),
    ),
    _collective_help(
        "launch_delay_ns",
        "launch delay",
        "From the begin of the host's call to the start, median of one collective. The part in dependency_ns "
        "it had to wait for compute or for the collective before it; the rest is the queue and the host.",
        ("launch_delay_ns", "dependency_ns"),
        "launch_delay_ns",
        formula="launch delay = start - launch = dependency + rest",
        inputs=("dependency_ns",),
    ),
    _collective_help(
        "dependency_ns",
        "what it had to wait for",
        "Median part of the launch delay until the last compute kernel that was launched before it, and the "
        "collective before it in its stream, had ended: the latest that it can be.",
        ("dependency_ns", "launch_delay_ns"),
        "dependency_ns",
        inputs=("launch_delay_ns",),
    ),
    _collective_help(
        "tail_ns",
        "tail",
        "From a rank's own end to the last rank's end, median. Long where ranks leave one after another.",
        ("tail_ns", "duration_ns"),
        "tail_ns",
        formula="tail = latest end over the ranks - end",
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
        "As the caller sees it: bytes of the full tensor over the intrinsic time. Median over the "
        "collectives; unknown where the clocks do not resolve them.",
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
        formula="bus bandwidth = algorithm bandwidth x factor of the kind",
        inputs=("algbw_bytes_per_s", "group_size"),
    ),
)
COMMUNICATION: tuple[MetricHelp, ...] = (*_COLLECTIVES, *PARTS, *CHECKS)
