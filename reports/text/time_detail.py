"""The time pages that need room: by step, unit and message size, the fitted link, the clocks of the ranks.

They are printed where the report has no memory side: ``--only time``, and an imported trace.
"""

from collections.abc import Sequence

from zprof.model.printable import printable, shorten
from zprof.model.report import Report
from zprof.model.time import Alignment, LinkFit, StepTime, Time, UnitTime
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import (
    bounded,
    is_unknown_size,
    most_exposed_units,
    per,
    sized_messages,
    telling_fits,
    telling_messages,
    unsplit_ns,
    worst_steps,
)
from zprof.reports.shown.time_words import ledger_cells, mean_count, split_marks
from zprof.reports.text.layout import heading, table, wrap

_STEPS = 12
_UNITS = 12
_MESSAGES = 12
_FITS = 8
_CLOCKS = 8
_GROUP = 16
_US = 1_000


def time_details(report: Report) -> list[str]:
    """All that is known beyond the ledger and the collectives; pages without rows are left out."""
    time = report.time
    return [
        *_steps(time),
        *_units(time),
        *_messages(time),
        *_fits(telling_fits(time, _FITS)),
        *_clocks(time.alignment),
    ]


def _steps(time: Time) -> list[str]:
    shown = worst_steps(time, _STEPS)
    if not shown:
        return []
    rows = [["step", "rank", "wall", "compute", "transfer", "wait", "copies", "idle", "unexpl."]]
    unsplit = {rank.rank for rank in time.per_rank if unsplit_ns([rank])}
    rows += [_step(step, step.rank in unsplit) for step in shown]
    rest = _of(len(shown), len(time.steps), "steps of ranks, the longest ones")
    return ["", heading("BY STEP", "ms; transfer, wait, copies: the exposed part"), *table(rows), *rest]


def _step(step: StepTime, bound: bool) -> list[str]:
    return [str(step.step), str(step.rank), *ledger_cells(step, is_bound=bound)]


def _units(time: Time) -> list[str]:
    units = most_exposed_units(time, _UNITS)
    if not units:
        return []
    rows = [["unit", "kind", "count", "size", "exposed transfer", "wait"]]
    bound = bounded(time)
    rows += [_unit(unit, (unit.kind, unit.group) in bound) for unit in units]
    rest = _of(len(units), len(time.units), "units, those with most exposed time")
    return ["", heading("BY UNIT", f"ms {per(time)}, mean of the ranks of the group"), *table(rows), *rest]


def _unit(unit: UnitTime, bound: bool) -> list[str]:
    least, most = split_marks(bound)
    return [
        printable(unit.unit),
        shorten(printable(unit.kind), _GROUP),
        mean_count(unit.count),
        "unknown" if is_unknown_size(unit.kind, unit.bytes) else format_bytes(unit.bytes),
        most + format_ms(unit.exposed_transfer_ns),
        least + format_ms(unit.exposed_wait_ns),
    ]


def _messages(time: Time) -> list[str]:
    known = sized_messages(time)
    bars = telling_messages(known, _MESSAGES)
    if not bars:
        return []
    rows = [["kind", "group", "from", "to", "count", "exposed", "bus"]]
    rows += [
        [
            shorten(printable(entry.kind), _GROUP),
            shorten(printable(group_name(entry.group)), _GROUP),
            format_bytes(entry.at_least_bytes),
            format_bytes(entry.below_bytes),
            mean_count(entry.count),
            format_ms(entry.exposed_ns),
            "-" if entry.busbw_bytes_per_s is None else format_rate(entry.busbw_bytes_per_s),
        ]
        for entry in bars
    ]
    rest = _of(len(bars), len(known), "rows, those with most exposed time")
    return ["", heading("BY MESSAGE SIZE", f"{per(time)}; exposed in ms"), *table(rows), *rest]


def _fits(fits: Sequence[LinkFit]) -> list[str]:
    if not fits:
        return []
    rows = [["kind", "group", "latency", "bandwidth", "bus", "latency's share", "off by"]]
    rows += [
        [
            shorten(printable(fit.kind), _GROUP),
            shorten(printable(group_name(fit.group)), _GROUP),
            format_ns(fit.latency_ns),
            "-" if fit.algbw_bytes_per_s is None else format_rate(fit.algbw_bytes_per_s),
            "-" if fit.busbw_bytes_per_s is None else format_rate(fit.busbw_bytes_per_s),
            format_percent(fit.latency_share_ratio),
            format_percent(fit.residual_ratio),
        ]
        for fit in fits
    ]
    return ["", heading("THE LINK", "fit: time = latency + bytes / bandwidth"), *table(rows)]


def _clocks(alignment: Alignment | None) -> list[str]:
    if alignment is None or len(alignment.offsets_ns) < 2:
        return []
    ranks = sorted(alignment.offsets_ns)
    shown = ranks[:_CLOCKS]
    rows = [["rank", "clock ahead by", "±", "possible", "drift"]]
    rows += [_clock(alignment, rank) for rank in shown]
    rest = _of(len(shown), len(ranks), "ranks")
    return ["", heading("CLOCKS", f"against rank {ranks[0]}, in µs"), *table(rows), *rest]


def _clock(alignment: Alignment, rank: int) -> list[str]:
    interval = alignment.interval_ns.get(rank)
    possible = "-" if interval is None else f"{interval[0] / _US:+.1f} to {interval[1] / _US:+.1f}"
    drift = alignment.drift_ppb.get(rank)
    return [
        str(rank),
        f"{alignment.offsets_ns[rank] / _US:+.1f}",
        f"{alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns) / _US:.1f}",
        possible,
        "-" if drift is None else f"{drift / 1000:+.2f} ppm",
    ]


def _of(shown: int, count: int, what: str) -> list[str]:
    return wrap(f"{shown} of {count} {what}; all: -f json") if count > shown else []
