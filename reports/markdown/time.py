"""The time part of a report in Markdown: the ledger that sums, and the ranks."""

from collections.abc import Mapping

from zprof.model.report import Report
from zprof.model.time import RankTime
from zprof.model.units import format_ms, format_percent
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import table
from zprof.reports.shown.path_presenter import path_kinds, path_ranks
from zprof.reports.shown.presenter import LedgerRow, ledger, step_change_ns, step_ns
from zprof.reports.shown.run_words import window_text
from zprof.reports.shown.time_presenter import LateRank, late_ranks, per, telling_ranks, unsplit_ns
from zprof.reports.shown.time_words import bounds, exposure_words, ledger_cells, signed, unsplit_words

_MAX_RANKS = 16
_MOST_LATE = 4
_MOST_KINDS = 4
_WORTH_RATIO = 0.005


def ledger_blocks(report: Report) -> list[str]:
    """The table, and how much of the collectives' time nothing hides; nothing where no step was timed."""
    ranks = report.time.per_rank
    if not ranks:
        return []
    blocks = [f"Milliseconds {per(report.time)}, mean of the ranks; the terms sum.", _ledger(report)]
    blocks += [f"{exposure_words('Collectives', ranks, per(report.time))}."]
    comparison = report.comparison
    if comparison and comparison.baseline_time:
        before = f"In {code(comparison.baseline)}"
        blocks.append(f"{exposure_words(before, comparison.baseline_time, per(report.time))}.")
    if said := window_text(report.time):
        blocks.append(f"{prose(said[0].upper() + said[1:])}.")
    if said := unsplit_words(ranks):
        blocks.append(f"{said}.")
    return blocks


def rank_blocks(report: Report) -> list[str]:
    """The ranks side by side, who was late, and the critical path; nothing for a single rank."""
    if report.run.world_size < 2 or not report.time.per_rank:
        return []
    return [_ranks(report), *_late(report), *_path(report)]


def _ledger(report: Report) -> str:
    rows = ledger(report)
    change = step_change_ns(report)
    comparison = report.comparison
    marks = bounds(report.time.per_rank)
    if change is None or comparison is None or comparison.step_time is None:
        cells = [
            [row.name, marks.get(row.name, "") + format_ms(row.this_ns), format_percent(row.share)]
            for row in rows
        ]
        name = "= all" if per(report.time) == "in all" else "= step"
        total = [f"**{name}**", f"**{format_ms(step_ns(report.time.per_rank))}**", ""]
        return table(["", "ms", "share"], [*cells, total])
    before = bounds(comparison.baseline_time)
    times = comparison.step_time
    steps = (format_ms(times.a_ns), format_ms(times.b_ns), signed(change))
    total = [f"**{cell}**" for cell in ("= step", *steps)]
    cells = [_changed(row, before, marks) for row in rows]
    return table(["", code(comparison.baseline, 24), code(report.run.name, 24), "change"], [*cells, total])


def _changed(row: LedgerRow, before: Mapping[str, str], marks: Mapping[str, str]) -> list[str]:
    was = "" if row.baseline_ns is None else before.get(row.name, "") + format_ms(row.baseline_ns)
    return [row.name, was, marks.get(row.name, "") + format_ms(row.this_ns), signed(row.change_ns or 0)]


def _ranks(report: Report) -> str:
    ranks = report.time.per_rank
    shown = telling_ranks(ranks, _MAX_RANKS)
    head = ["rank", "step", "compute", "exposed transfer", "exposed wait", "exposed copies", "idle",
            "unexplained", "overlap"]  # fmt: skip
    text = table(head, [_rank(rank) for rank in shown])
    if len(shown) < len(ranks):
        text += f"\n\n{len(shown)} of {len(ranks)} ranks: those that wait most and those that wait least."
    return text


def _rank(rank: RankTime) -> list[str]:
    return [
        str(rank.rank),
        *ledger_cells(rank, is_bound=unsplit_ns([rank]) > 0),
        "-" if rank.overlap_ratio is None else format_percent(rank.overlap_ratio),
    ]


def _late(report: Report) -> list[str]:
    found = late_ranks(report.time.blame, _MOST_LATE) if report.time.blame else ()
    if not found:
        return []
    rows = [
        [
            str(entry.blame.rank),
            _because(entry),
            format_ms(entry.blame.exposed_wait_per_rank_ns),
            format_ms(entry.blame.wait_per_rank_ns),
            str(entry.blame.waiting_ranks),
            format_percent(entry.blame.last_ratio),
        ]
        for entry in found
    ]
    return [
        f"Who the others waited for, in ms {per(report.time)}, per waiting rank:",
        table(
            ["rank", "because of", "wait caused", "with hidden", "waiting ranks", "came last"],
            rows,
            words=(0, 1),
        ),
    ]


def _because(entry: LateRank) -> str:
    reasons = [f"{name} {share * 100:.0f} %".replace("_", " ") for name, share in entry.reasons[:2]]
    return prose(", ".join(reasons), 80) or "-"


def _path(report: Report) -> list[str]:
    path = report.time.critical_path
    if path is None or not path.shares:
        return []
    kinds = ", ".join(
        f"{prose(kind, 40)} {format_percent(share)}"
        for kind, share in path_kinds(path)[:_MOST_KINDS]
        if share >= _WORTH_RATIO
    )
    ranks = ", ".join(f"rank {entry.rank} {format_percent(entry.share)}" for entry in path_ranks(path)[:4])
    return [f"Critical path, what a step could not be shorter than: {kinds}; through {ranks}."]
