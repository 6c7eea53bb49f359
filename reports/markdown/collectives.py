"""The collectives of a report in Markdown: by kind and group, bytes against the law, and the clocks."""

from zprof.model.report import Report
from zprof.model.time import Alignment, CollectiveTime
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import table
from zprof.reports.shown.groups import group_name
from zprof.reports.shown.time_presenter import is_unknown_size, per

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
    least, most = ("≥ ", "≤ ") if entry.bound else ("", "")
    return [
        code(entry.kind, 48),
        code(group_name(entry.group), 48),
        code(entry.dtype, 24),
        f"{entry.count:g}" if entry.count < 1e5 else f"{entry.count:.0f}",
        "unknown" if is_unknown_size(entry.kind, entry.bytes) else format_bytes(entry.bytes),
        format_ms(entry.total_ns),
        format_ms(entry.exposed_ns),
        least + format_ms(entry.wait_ns),
        most + format_ms(entry.transfer_ns),
        "-" if entry.busbw_bytes_per_s is None else format_rate(entry.busbw_bytes_per_s),
    ]


def _volume(report: Report) -> list[str]:
    volume = report.volume
    if volume is None:
        return []
    return [
        f"Bytes a step: {format_bytes(volume.seen_bytes)}, the stage's law says "
        f"{format_bytes(volume.expected_bytes)} ({format_percent(volume.ratio)})."
    ]


def _clocks(report: Report) -> list[str]:
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return []
    unmatched = f", {alignment.unmatched} not" if alignment.unmatched else ""
    return [f"{_aligned(alignment)}; {alignment.matched} collectives matched across ranks{unmatched}."]


def _aligned(alignment: Alignment) -> str:
    if len(alignment.offsets_ns) < 2:
        return "Clocks not aligned: the ranks share no collective that could do it"
    return f"Clocks aligned by {prose(alignment.method, 200)} to {format_ns(alignment.uncertainty_ns)}"
