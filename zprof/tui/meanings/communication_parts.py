"""Leaves of what collectives are made of: message sizes, wrapped modules, fitted links."""

from zprof.tui.meanings.communication_rows import of_fit, of_message, of_unit
from zprof.tui.meanings.communication_words import BUS, EXPOSED, MEAN
from zprof.tui.meanings.meaning import Meaning

_SPLIT = ("exposed_wait_ns", "exposed_transfer_ns")
_SIZE_ROWS = of_message(("bytes", "duration_ns", *_SPLIT), "exposed_ns")
_MESSAGES = (
    Meaning(
        leaf="time.messages[].at_least_bytes",
        title="message size, from",
        says="Sizes go up in powers of four from 1 KiB; a bar holds those from here to below the next.",
        inputs=("below_bytes",),
        rows=_SIZE_ROWS,
    ),
    Meaning(
        leaf="time.messages[].below_bytes",
        title="message size, below",
        says="Sizes go up in powers of four from 1 KiB; a bar holds those below this one.",
        inputs=("at_least_bytes",),
        rows=_SIZE_ROWS,
    ),
    Meaning(
        leaf="time.messages[].count",
        title="messages of a size",
        says=f"How many of this size. {MEAN}",
        inputs=("at_least_bytes", "below_bytes"),
        rows=_SIZE_ROWS,
    ),
    Meaning(
        leaf="time.messages[].exposed_ns",
        title="exposed time of messages of a size",
        says=f"{EXPOSED} {MEAN}",
        inputs=("count",),
        rows=_SIZE_ROWS,
    ),
    Meaning(
        leaf="time.messages[].busbw_bytes_per_s",
        title="bus bandwidth of messages of a size",
        says=BUS,
        formula="bus bandwidth = bytes / (first end - last start) x factor of the kind, median",
        inputs=("count", "at_least_bytes"),
        rows=of_message(("bytes", "intrinsic_ns"), "bytes"),
    ),
)
_UNITS = (
    Meaning(
        leaf="time.units[].count",
        title="collectives of a unit",
        says=f"Of the wrapped module that they gather or reduce for. {MEAN}",
        rows=of_unit(("bytes", "duration_ns"), "duration_ns"),
    ),
    Meaning(
        leaf="time.units[].bytes",
        title="bytes of a unit",
        says=f"Of the full tensors. {MEAN}",
        inputs=("count",),
        rows=of_unit(("bytes", "duration_ns"), "bytes"),
    ),
    Meaning(
        leaf="time.units[].exposed_wait_ns",
        title="exposed waiting of a unit",
        says=f"The part of the exposed time before the last rank of the group came. {MEAN}",
        formula="exposed wait = exposed, before the latest start of all ranks",
        inputs=("exposed_transfer_ns", "count"),
        rows=of_unit(("exposed_wait_ns", "wait_ns", "last_rank", "late_reason"), "exposed_wait_ns"),
    ),
    Meaning(
        leaf="time.units[].exposed_transfer_ns",
        title="exposed transfer of a unit",
        says=f"The part of the exposed time after the last rank of the group came. {MEAN}",
        formula="exposed transfer = exposed, after the latest start of all ranks",
        inputs=("exposed_wait_ns", "count"),
        rows=of_unit(("exposed_transfer_ns", "transfer_ns", "bytes"), "exposed_transfer_ns"),
    ),
)
_LINE = "time = latency + bytes / algorithm bandwidth"
_FIT = "A robust line through the intrinsic times of the messages over their sizes (medians of slopes)."
_FITS = tuple(
    Meaning(leaf=f"time.fits[].{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=of_fit)
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
PARTS: tuple[Meaning, ...] = (*_MESSAGES, *_UNITS, *_FITS)
