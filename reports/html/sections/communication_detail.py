"""Collectives by unit and message size, the fitted link, and the clocks of the ranks."""

from collections.abc import Sequence

from zprof.model.report import Report
from zprof.model.time import Alignment, LinkFit, MessageSizes, Time, UnitTime
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import (
    bounded,
    is_unknown_size,
    most_exposed_units,
    per,
    sized_messages,
    telling_fits,
    telling_messages,
)
from zprof.reports.shown.time_words import mean_count, split_marks

_MOST = 200
_US = 1_000


def communication_detail(report: Report) -> Sequence[Block]:
    """Tables without rows are left out."""
    time = report.time
    return (*_units(time), *_messages(time), *_fits(time), *_clocks(time.alignment))


def _units(time: Time) -> Sequence[Block]:
    units, bound = most_exposed_units(time, _MOST), bounded(time)
    columns = (
        Column(title="unit"),
        Column(title="kind"),
        Column(title="count", unit=per(time), numeric=True),
        Column(title="size", unit="bytes", numeric=True),
        *words.numbers(("exposed transfer", "exposed wait"), "ms"),
    )
    return words.table(
        f"By unit, {per(time)}, mean of the ranks of the group",
        columns,
        [_unit(unit, (unit.kind, unit.group) in bound) for unit in units],
        words.left_out(len(units), len(time.units), "units, those with most exposed time"),
    )


def _unit(unit: UnitTime, bound: bool) -> tuple[str, ...]:
    least, most = split_marks(bound)
    return (
        words.name(unit.unit),
        words.name(unit.kind, 40),
        mean_count(unit.count),
        "unknown" if is_unknown_size(unit.kind, unit.bytes) else format_bytes(unit.bytes),
        most + format_ms(unit.exposed_transfer_ns),
        least + format_ms(unit.exposed_wait_ns),
    )


def _messages(time: Time) -> Sequence[Block]:
    known = sized_messages(time)
    bars = telling_messages(known, _MOST)
    columns = (
        Column(title="kind"),
        Column(title="group"),
        *words.numbers(("from", "to below"), "bytes"),
        Column(title="count", unit=per(time), numeric=True),
        *words.numbers(("exposed",), "ms"),
        *words.numbers(("bus",), "bytes/s"),
    )
    return words.table(
        f"By message size, {per(time)}",
        columns,
        [_message(bar) for bar in bars],
        words.left_out(len(bars), len(known), "rows, those with most exposed time"),
    )


def _message(bar: MessageSizes) -> tuple[str, ...]:
    return (
        words.name(bar.kind, 40),
        words.name(group_name(bar.group), 60),
        format_bytes(bar.at_least_bytes),
        format_bytes(bar.below_bytes),
        mean_count(bar.count),
        format_ms(bar.exposed_ns),
        _rate(bar.busbw_bytes_per_s),
    )


def _fits(time: Time) -> Sequence[Block]:
    fits = telling_fits(time, _MOST)
    columns = (
        Column(title="kind"),
        Column(title="group"),
        Column(title="messages", unit="count", numeric=True),
        Column(title="latency", unit="time", numeric=True),
        *words.numbers(("bandwidth", "bus"), "bytes/s"),
        *words.numbers(("latency's share", "off by"), "%"),
    )
    return words.table(
        "The link, fitted: time = latency + bytes / bandwidth",
        columns,
        [_fit(fit) for fit in fits],
        words.left_out(len(fits), len(time.fits), "fits, those of most messages"),
    )


def _fit(fit: LinkFit) -> tuple[str, ...]:
    return (
        words.name(fit.kind, 40),
        words.name(group_name(fit.group), 60),
        f"{fit.messages:,}",
        format_ns(fit.latency_ns),
        _rate(fit.algbw_bytes_per_s),
        _rate(fit.busbw_bytes_per_s),
        format_percent(fit.latency_share_ratio),
        format_percent(fit.residual_ratio),
    )


def _rate(bytes_per_s: float | None) -> str:
    return words.NOTHING if bytes_per_s is None else format_rate(bytes_per_s)


def _clocks(alignment: Alignment | None) -> Sequence[Block]:
    if alignment is None or len(alignment.offsets_ns) < 2:
        return ()
    ranks = sorted(alignment.offsets_ns)
    columns = (
        Column(title="rank"),
        *words.numbers(("clock ahead by", "±", "possible"), "µs"),
        *words.numbers(("drift",), "ppm"),
    )
    shown = ranks[:_MOST]
    return words.table(
        f"Clocks, against rank {ranks[0]}",
        columns,
        [_clock(alignment, rank) for rank in shown],
        words.left_out(len(shown), len(ranks), "ranks"),
        folded_from=8,
    )


def _clock(alignment: Alignment, rank: int) -> tuple[str, ...]:
    interval, drift = alignment.interval_ns.get(rank), alignment.drift_ppb.get(rank)
    return (
        str(rank),
        f"{alignment.offsets_ns[rank] / _US:+.1f}",
        f"{alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns) / _US:.1f}",
        words.NOTHING if interval is None else f"{interval[0] / _US:+.1f} to {interval[1] / _US:+.1f}",
        words.NOTHING if drift is None else f"{drift / 1000:+.2f}",
    )
