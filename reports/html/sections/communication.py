"""Collectives by kind, group and type: exposed and hidden, waiting and moving, bandwidth; bytes by law."""

from collections.abc import Sequence

from zprof.model.report import Report
from zprof.model.time import CollectiveTime, Time
from zprof.model.units import format_bytes, format_ms, format_ns, format_rate
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Notes
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import is_unknown_size, per
from zprof.reports.shown.time_words import aligned_words, mean_count, repair_words, split_marks, volume_words

_MOST = 200


def communication(report: Report) -> Sequence[Block]:
    """The table, and what is said of bytes and clocks."""
    notes = (*_volume(report), *_clocks(report))
    return (*_collectives(report.time), *((Notes(lines=notes),) if notes else ()))


def _collectives(time: Time) -> Sequence[Block]:
    found = time.collectives
    columns = (
        Column(title="kind"),
        Column(title="group"),
        Column(title="type"),
        Column(title="count", unit="a step" if per(time) == "a step" else "in all", numeric=True),
        Column(title="size", unit="bytes", numeric=True),
        *words.numbers(("total", "exposed", "hidden", "wait", "transfer"), "ms"),
        Column(title="launch delay", unit="median", numeric=True),
        *words.numbers(("bandwidth", "bus bandwidth"), "bytes/s"),
    )
    notes = []
    if any(entry.bound for entry in found):
        notes.append("≥ wait and ≤ transfer are bounds: not all ranks of the group could be compared")
    notes += words.left_out(
        min(_MOST, len(found)), len(found), "kinds and groups, those with most exposed time"
    )
    caption = f"Collectives {per(time)}, mean of the ranks of the group"
    return words.table(caption, columns, [_row(entry) for entry in found[:_MOST]], notes, folded_from=100)


def _row(entry: CollectiveTime) -> tuple[str, ...]:
    least, most = split_marks(entry.bound)
    return (
        words.name(entry.kind, 40),
        words.name(group_name(entry.group), 60),
        words.name(entry.dtype, 24),
        mean_count(entry.count),
        "unknown" if is_unknown_size(entry.kind, entry.bytes) else format_bytes(entry.bytes),
        format_ms(entry.total_ns),
        format_ms(entry.exposed_ns),
        format_ms(entry.total_ns - entry.exposed_ns),
        least + format_ms(entry.wait_ns),
        most + format_ms(entry.transfer_ns),
        words.NOTHING if entry.launch_delay_ns is None else format_ns(entry.launch_delay_ns),
        *(
            words.NOTHING if rate is None else format_rate(rate)
            for rate in (entry.algbw_bytes_per_s, entry.busbw_bytes_per_s)
        ),
    )


def _volume(report: Report) -> tuple[str, ...]:
    return () if report.volume is None else (volume_words(report.volume),)


def _clocks(report: Report) -> tuple[str, ...]:
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return ()
    matched = f"{alignment.matched:,} collectives matched across ranks"
    if alignment.unmatched:
        matched += f", {alignment.unmatched:,} not"
    return (words.sentence(f"{aligned_words(alignment)}; {matched}"), *repair_words(alignment))
