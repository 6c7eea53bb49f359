"""The time part of the text report: ledger, exposed share, ranks, who was late, collectives."""

from collections.abc import Mapping

from zprof.model.printable import printable, shorten
from zprof.model.report import Report
from zprof.model.time import RankTime, WindowPolicy
from zprof.model.units import format_ms, format_percent
from zprof.reports.shown.presenter import LedgerRow, ledger, step_change_ns, step_ns
from zprof.reports.shown.run_words import window_text
from zprof.reports.shown.time_presenter import per, telling_ranks, unsplit_ns
from zprof.reports.shown.time_words import bounds, exposure_words, signed, split_marks, unsplit_words
from zprof.reports.text.collectives import collectives
from zprof.reports.text.critical_path import critical_path
from zprof.reports.text.late import late
from zprof.reports.text.layout import bar, heading, table, wrap

_BAR = 24
_NAME = 12
_MAX_RANKS = 8
_LEFT_OUT = "8 of {} ranks, those that wait most and those that wait least; all: -f json"


def time(report: Report) -> list[str]:
    """Nothing where no step was timed: the gaps say why."""
    if not report.time.per_rank:
        return []
    return [
        "",
        *_ledger(report),
        *exposed(report),
        *(wrap(said) if (said := unsplit_words(report.time.per_rank)) else ()),
        *(wrap(said) if (said := window_text(report.time)) else ()),
        *_ranks(report),
        *late(report),
        *critical_path(report),
        *collectives(report),
    ]


def _ledger(report: Report) -> list[str]:
    rows = ledger(report)
    change = step_change_ns(report)
    times = report.comparison.step_time if report.comparison else None
    if change is None or times is None or report.comparison is None:
        whole = report.time.window is not None and report.time.window.policy is WindowPolicy.TRACE
        what = ("WHERE THE TIME GOES", "ms in all") if whole else ("WHERE A STEP GOES", "ms a step")
        title = heading(what[0], f"{what[1]}, mean of the ranks")
        marks = bounds(report.time.per_rank)
        cells = [[row.name, marks.get(row.name, "") + format_ms(row.this_ns), _bar(row)] for row in rows]
        return [
            title,
            *table([*cells, ["= all" if whole else "= step", format_ms(step_ns(report.time.per_rank)), ""]]),
        ]
    title = heading(f"WHERE THE {signed(change)} ms WENT", "ms a step, mean of the ranks")
    names = [shorten(printable(name), _NAME) for name in (report.comparison.baseline, report.run.name)]
    before, after = (bounds(ranks) for ranks in (report.comparison.baseline_time, report.time.per_rank))
    cells = [["", *names, "change", ""], *[_changed(row, before, after) for row in rows]]
    total = ["= step", format_ms(times.a_ns), format_ms(times.b_ns), signed(change), ""]
    return [title, *table([*cells, total])]


def _changed(row: LedgerRow, marks_before: Mapping[str, str], marks: Mapping[str, str]) -> list[str]:
    before = "" if row.baseline_ns is None else marks_before.get(row.name, "") + format_ms(row.baseline_ns)
    change = 0 if row.change_ns is None else row.change_ns
    shown = _bar(row) if change > 0 else ""
    return [row.name, before, marks.get(row.name, "") + format_ms(row.this_ns), signed(change), shown]


def _bar(row: LedgerRow) -> str:
    return bar(row.share, _BAR)


def exposed(report: Report) -> list[str]:
    """How much of the collectives' time nothing hides, of this run and of its baseline."""
    of = per(report.time)
    lines = wrap(exposure_words("collectives", report.time.per_rank, of))
    comparison = report.comparison
    if comparison is None or not comparison.baseline_time:
        return lines
    before = f"in {shorten(printable(comparison.baseline), 24)}"
    return lines + wrap(exposure_words(before, comparison.baseline_time, of))


def _most(rank: RankTime) -> str:
    return split_marks(unsplit_ns([rank]) > 0)[1]


def _least(rank: RankTime) -> str:
    return split_marks(unsplit_ns([rank]) > 0)[0]


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
            _most(rank) + format_ms(rank.exposed_transfer_ns),
            _least(rank) + format_ms(rank.exposed_wait_ns),
            format_ms(rank.exposed_memcpy_ns),
            format_ms(rank.idle_ns),
            format_ms(rank.unexplained_ns),
            "-" if rank.overlap_ratio is None else format_percent(rank.overlap_ratio),
        ]
        for rank in telling_ranks(ranks, _MAX_RANKS)
    ]
    left_out = [] if len(ranks) <= _MAX_RANKS else wrap(_LEFT_OUT.format(len(ranks)))
    return [
        "",
        heading("BY RANK", f"ms {per(report.time)}; transfer, wait, copies: the exposed part"),
        *table(rows),
        *left_out,
    ]
