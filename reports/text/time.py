"""The time part of the text report: ledger, exposed share, ranks, collectives, volume."""

from collections.abc import Sequence

from zprof.model.printable import printable, shorten
from zprof.model.report import Report, Volume
from zprof.model.time import CollectiveTime, RankTime
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.reports.shown.presenter import LedgerRow, exposure, ledger, step_change_ns, step_ns
from zprof.reports.text.layout import WIDTH, bar, heading, table, wrap

_BAR = 24
_NAME = 12
_MAX_RANKS = 8


def time(report: Report) -> list[str]:
    """Nothing where no step was timed: the gaps say why."""
    if not report.time.per_rank:
        return []
    return [
        "",
        *_ledger(report),
        *_exposed(report),
        *_ranks(report),
        *_collectives(report.time.collectives),
        *_volume(report.volume),
        *_clocks(report),
    ]


def _ledger(report: Report) -> list[str]:
    rows = ledger(report)
    change = step_change_ns(report)
    times = report.comparison.step_time if report.comparison else None
    if change is None or times is None or report.comparison is None:
        title = heading("WHERE A STEP GOES", "ms a step, mean of the ranks")
        cells = [[row.name, format_ms(row.this_ns), _bar(row)] for row in rows]
        return [title, *table([*cells, ["= step", format_ms(step_ns(report.time.per_rank)), ""]])]
    title = heading(f"WHERE THE {_signed(change)} ms WENT", "ms a step, mean of the ranks")
    names = [shorten(printable(name), _NAME) for name in (report.comparison.baseline, report.run.name)]
    cells = [["", *names, "change", ""], *[_changed(row) for row in rows]]
    total = ["= step", format_ms(times.a_ns), format_ms(times.b_ns), _signed(change), ""]
    return [title, *table([*cells, total])]


def _changed(row: LedgerRow) -> list[str]:
    before = "" if row.baseline_ns is None else format_ms(row.baseline_ns)
    change = 0 if row.change_ns is None else row.change_ns
    shown = _bar(row) if change > 0 else ""
    return [row.name, before, format_ms(row.this_ns), _signed(change), shown]


def _bar(row: LedgerRow) -> str:
    return bar(row.share, _BAR)


def _signed(change_ns: int) -> str:
    text = format_ms(change_ns)
    return f"+{text}" if change_ns > 0 and text.strip("0.") else text.replace("-0.0", "0.0")


def _exposed(report: Report) -> list[str]:
    lines = _exposure_line("collectives", report.time.per_rank)
    comparison = report.comparison
    if comparison is None or not comparison.baseline_time:
        return lines
    return lines + _exposure_line(
        f"in {shorten(printable(comparison.baseline), 24)}", comparison.baseline_time
    )


def _exposure_line(who: str, ranks: Sequence[RankTime]) -> list[str]:
    seen = exposure(ranks)
    if seen.ratio is None:
        return wrap(f"{who}: none ran in these steps")
    most, least = ("at most ", "at least ") if seen.at_most else ("", "")
    return wrap(
        f"{who} {format_ns(seen.collective_ns)} a step: {most}{format_ns(seen.exposed_ns)} exposed "
        f"({format_percent(seen.ratio)}), {least}{format_ns(seen.hidden_ns)} hidden"
    )


def _ranks(report: Report) -> list[str]:
    if report.run.world_size < 2:
        return []
    ranks = report.time.per_rank
    rows = [["rank", "step", "compute", "transfer", "wait", "copies", "idle", "unexpl.", "overlap"]]
    rows += [
        [
            str(rank.rank),
            format_ms(rank.wall_ns),
            format_ms(rank.compute_ns),
            format_ms(rank.exposed_transfer_ns),
            format_ms(rank.exposed_wait_ns),
            format_ms(rank.exposed_memcpy_ns),
            format_ms(rank.idle_ns),
            format_ms(rank.unexplained_ns),
            "-" if rank.overlap_ratio is None else format_percent(rank.overlap_ratio),
        ]
        for rank in ranks[:_MAX_RANKS]
    ]
    left_out = [] if len(ranks) <= _MAX_RANKS else wrap(f"{_MAX_RANKS} of {len(ranks)} ranks; all: -f json")
    return [
        "",
        heading("BY RANK", "ms a step; transfer, wait, copies: the exposed part"),
        *table(rows),
        *left_out,
    ]


def _collectives(collectives: Sequence[CollectiveTime]) -> list[str]:
    if not collectives:
        return []
    places = list(dict.fromkeys(_place(entry) for entry in collectives))
    ordered = sorted(collectives, key=lambda entry: places.index(_place(entry)))
    rows = [["kind", "count", "size", "total", "exposed", "wait", "transfer", "bus"]]
    rows += [[printable(entry.kind), *_cells(entry)] for entry in ordered]
    head, *lines = table(rows)
    title = heading(
        shorten(f"COLLECTIVES ({places[0]})" if len(places) == 1 else "COLLECTIVES", WIDTH - 42),
        "a step, mean of the ranks; times in ms",
    )
    return ["", title, head, *(lines if len(places) == 1 else _by_place(ordered, lines))]


def _place(entry: CollectiveTime) -> str:
    return printable(f"group {entry.group}, {entry.dtype}")


def _by_place(collectives: Sequence[CollectiveTime], lines: Sequence[str]) -> list[str]:
    """Each line under the group and data type of its collective, which a cell has no room for."""
    out: list[str] = []
    place = ""
    for entry, line in zip(collectives, lines, strict=True):
        if _place(entry) != place:
            place = _place(entry)
            out.append(shorten(f"  {place}", WIDTH))
        out.append(line)
    return out


def _cells(entry: CollectiveTime) -> list[str]:
    return [
        f"{entry.count:g}" if entry.count < 1e5 else f"{entry.count:.0f}",
        format_bytes(entry.bytes),
        format_ms(entry.total_ns),
        format_ms(entry.exposed_ns),
        format_ms(entry.wait_ns),
        format_ms(entry.transfer_ns),
        "-" if entry.busbw_bytes_per_s is None else format_rate(entry.busbw_bytes_per_s),
    ]


def _volume(volume: Volume | None) -> list[str]:
    if volume is None:
        return []
    return wrap(
        f"bytes a step: {format_bytes(volume.seen_bytes)}, the stage's law says "
        f"{format_bytes(volume.expected_bytes)} ({format_percent(volume.ratio)})"
    )


def _clocks(report: Report) -> list[str]:
    alignment = report.time.alignment
    if alignment is None or len(report.time.per_rank) < 2:
        return []
    matched = f"{alignment.matched} collectives matched across ranks"
    if alignment.unmatched:
        matched += f", {alignment.unmatched} not"
    return wrap(
        printable(f"clocks aligned by {alignment.method} to {format_ns(alignment.uncertainty_ns)}; {matched}")
    )
