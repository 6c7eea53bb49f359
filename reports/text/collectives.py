"""The collectives of the text report: by kind and group, bytes against the law, and the clocks."""

from collections.abc import Sequence

from zprof.model.printable import printable, shorten
from zprof.model.report import Report, Volume
from zprof.model.time import CollectiveTime, Time
from zprof.model.units import format_bytes, format_ms, format_rate
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import is_unknown_size, per
from zprof.reports.shown.time_words import aligned_words, mean_count, repair_words, split_marks, volume_words
from zprof.reports.text.layout import heading, page_width, table, wrap

_MOST = 24


def collectives(report: Report) -> list[str]:
    """The table, and the lines under it."""
    return [*_table(report.time), *_volume(report.volume), *_clocks(report)]


def _table(time: Time) -> list[str]:
    found = time.collectives
    if not found:
        return []
    shown = found[:_MOST]
    places = list(dict.fromkeys(_place(entry) for entry in shown))
    ordered = sorted(shown, key=lambda entry: places.index(_place(entry)))
    rows = [["kind", "count", "size", "total", "exposed", "wait", "transfer", "bus"]]
    rows += [[printable(entry.kind), *_cells(entry)] for entry in ordered]
    head, *lines = table(rows)
    title = heading(
        shorten(f"COLLECTIVES ({places[0]})" if len(places) == 1 else "COLLECTIVES", page_width() - 42),
        f"{per(time)}, mean of the ranks; times in ms",
    )
    body = lines if len(places) == 1 else _by_place(ordered, lines)
    return ["", title, head, *body, *_notes(found)]


def _notes(found: Sequence[CollectiveTime]) -> list[str]:
    notes = []
    if any(entry.bound for entry in found):
        notes += wrap("≥ wait and ≤ transfer are bounds: not all ranks of the group could be compared")
    if len(found) > _MOST:
        notes += wrap(f"{_MOST} of {len(found)} kinds and groups, those with most exposed time; all: -f json")
    return notes


def _place(entry: CollectiveTime) -> str:
    return printable(f"group {group_name(entry.group)}, {entry.dtype}")


def _by_place(found: Sequence[CollectiveTime], lines: Sequence[str]) -> list[str]:
    """Each line under the group and data type of its collective, which a cell has no room for."""
    out: list[str] = []
    place = ""
    for entry, line in zip(found, lines, strict=True):
        if _place(entry) != place:
            place = _place(entry)
            out.append(shorten(f"  {place}", page_width()))
        out.append(line)
    return out


def _cells(entry: CollectiveTime) -> list[str]:
    least, most = split_marks(entry.bound)
    return [
        mean_count(entry.count),
        "unknown" if is_unknown_size(entry.kind, entry.bytes) else format_bytes(entry.bytes),
        format_ms(entry.total_ns),
        format_ms(entry.exposed_ns),
        least + format_ms(entry.wait_ns),
        most + format_ms(entry.transfer_ns),
        "-" if entry.busbw_bytes_per_s is None else format_rate(entry.busbw_bytes_per_s),
    ]


def _volume(volume: Volume | None) -> list[str]:
    return [] if volume is None else wrap(volume_words(volume))


def _clocks(report: Report) -> list[str]:
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return []
    matched = f"{alignment.matched} collectives matched across ranks"
    if alignment.unmatched:
        matched += f", {alignment.unmatched} not"
    lines = wrap(printable(f"{aligned_words(alignment)}; {matched}"))
    for repair in repair_words(alignment):
        lines += wrap(repair)
    return lines
