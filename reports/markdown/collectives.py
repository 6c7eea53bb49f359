"""The collectives of a report in Markdown: by kind and group, bytes against the law, and the clocks."""

from dataclasses import replace

from zprof.model.report import Report
from zprof.model.time import Alignment, CollectiveTime
from zprof.model.units import format_bytes, format_ms, format_rate
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import table
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import is_unknown_size, per
from zprof.reports.shown.time_words import aligned_words, mean_count, split_marks, volume_words

_MOST = 24
_HEAD = ["kind", "group", "type", "count", "size", "total", "exposed", "wait", "transfer", "bus"]


def collective_blocks(report: Report) -> list[str]:
    """Nothing where none was recorded: the gaps say why."""
    found = report.time.collectives
    if not found:
        return []
    note = f"Of {per(report.time)} of one rank, mean of the ranks; times in ms."
    if per(report.time) == "in all":
        note = "In all, of one rank, mean of the ranks; times in ms."
    blocks = [note, table(_HEAD, [_row(entry) for entry in found[:_MOST]], words=(0, 1, 2))]
    if any(entry.bound for entry in found):
        blocks.append("≥ and ≤ are bounds: not all ranks of the group could be compared.")
    if len(found) > _MOST:
        blocks.append(f"{_MOST} of {len(found)} kinds and groups, those with most exposed time.")
    return [*blocks, *_volume(report), *_clocks(report)]


def _row(entry: CollectiveTime) -> list[str]:
    least, most = split_marks(entry.bound)
    return [
        code(entry.kind, 48),
        code(group_name(entry.group), 48),
        code(entry.dtype, 24),
        mean_count(entry.count),
        "unknown" if is_unknown_size(entry.kind, entry.bytes) else format_bytes(entry.bytes),
        format_ms(entry.total_ns),
        format_ms(entry.exposed_ns),
        least + format_ms(entry.wait_ns),
        most + format_ms(entry.transfer_ns),
        "-" if entry.busbw_bytes_per_s is None else format_rate(entry.busbw_bytes_per_s),
    ]


def _volume(report: Report) -> list[str]:
    return [] if report.volume is None else [f"{_begun(volume_words(report.volume))}."]


def _clocks(report: Report) -> list[str]:
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return []
    unmatched = f", {alignment.unmatched} not" if alignment.unmatched else ""
    return [f"{_aligned(alignment)}; {alignment.matched} collectives matched across ranks{unmatched}."]


def _aligned(alignment: Alignment) -> str:
    escaped = replace(alignment, method=prose(alignment.method, 200))
    return _begun(aligned_words(escaped))


def _begun(words: str) -> str:
    return words[0].upper() + words[1:]
