"""Ranks: heat maps by rank and step, who was late, the ledger of each rank, and the critical path."""

from collections.abc import Sequence

from zprof.model.report import Report
from zprof.model.time import RankTime
from zprof.model.units import format_ms, format_ns, format_percent
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Notes
from zprof.reports.html.sections.heat import Measured, heat
from zprof.reports.shown.path_presenter import PathRank, path_kinds, path_ranks
from zprof.reports.shown.time_presenter import LateRank, late_ranks, per, telling_ranks, unsplit_ns
from zprof.reports.shown.time_words import ledger_cells

_MOST = 200
_LATE = 64
_REASONS = 3
_WORTH_RATIO = 0.005


def ranks(report: Report) -> Sequence[Block]:
    """Nothing where a job has one rank: its ledger stands above."""
    if report.run.world_size < 2:
        return ()
    return (*_maps(report), *_late(report), *_by_rank(report), *_path(report))


def _maps(report: Report) -> Sequence[Block]:
    time = report.time
    late = [Measured(rank=entry.rank, step=entry.step, ns=entry.mean_ns) for entry in time.lateness]
    wall = [Measured(rank=entry.rank, step=entry.step, ns=entry.wall_ns) for entry in time.steps]
    doubt = time.alignment.uncertainty_ns if time.alignment else None
    note = () if doubt is None else (f"below {format_ns(doubt)}, the doubt of the clocks, it means nothing",)
    return (
        *heat("Lateness: start of collectives after the first rank of the group, mean of a step", late, note),
        *heat("Step time", wall, ()),
    )


def _late(report: Report) -> Sequence[Block]:
    shares = report.time.blame
    if shares is None:
        return ()
    found = late_ranks(shares, _LATE)
    columns = (
        Column(title="rank"),
        *words.numbers(("wait caused", "with hidden"), "ms"),
        Column(title="waiting ranks", numeric=True),
        *words.numbers(("of all exposed waiting", "came last in"), "%"),
        *words.numbers(("its own wait",), "ms"),
        Column(title="because of", unit="% of what it caused"),
    )
    notes = []
    if shares.tied_ns:
        notes.append(f"{format_ns(shares.tied_ns)}: the last two arrived within the doubt of the clocks")
    if shares.unjudged_ns:
        notes.append(
            f"{format_ns(shares.unjudged_ns)}: not judged (first of a window, ranks missing, no match)"
        )
    said = [f"nobody is blamed for {note}" for note in notes]
    said += words.left_out(len(found), len(shares.per_rank), "ranks, those that others wait for most")
    said.append(f"wait caused: exposed, {per(report.time)}, per waiting rank")
    title = f"Late ranks {per(report.time)}, per waiting rank"
    return words.table(title, columns, [_late_row(entry) for entry in found], said)


def _late_row(entry: LateRank) -> tuple[str, ...]:
    blame = entry.blame
    reasons = [
        f"{reason.replace('_', ' ')} {share * 100:.0f} %" for reason, share in entry.reasons[:_REASONS]
    ]
    return (
        str(blame.rank),
        format_ms(blame.exposed_wait_per_rank_ns),
        format_ms(blame.wait_per_rank_ns),
        str(blame.waiting_ranks),
        format_percent(entry.share),
        format_percent(blame.last_ratio),
        format_ms(blame.own_wait_ns),
        words.name(", ".join(reasons)) or words.NOTHING,
    )


def _by_rank(report: Report) -> Sequence[Block]:
    known = report.time.per_rank
    shown = telling_ranks(known, _MOST)
    titles = ("step", "compute", "transfer", "wait", "copies", "idle", "unexplained")
    columns = (Column(title="rank"), *words.numbers(titles, "ms"), *words.numbers(("hidden",), "%"))
    notes = (
        "transfer, wait, copies: the exposed part; hidden: the part of the collectives' time under compute",
        *words.left_out(len(shown), len(known), "ranks, those that wait most and those that wait least"),
    )
    title = f"Ledger by rank, {per(report.time)}"
    return words.table(title, columns, [_rank(rank) for rank in shown], notes)


def _rank(rank: RankTime) -> tuple[str, ...]:
    return (
        str(rank.rank),
        *ledger_cells(rank, is_bound=unsplit_ns([rank]) > 0),
        words.NOTHING if rank.overlap_ratio is None else format_percent(rank.overlap_ratio),
    )


def _path(report: Report) -> Sequence[Block]:
    path = report.time.critical_path
    if path is None or not path.shares:
        return ()
    found = path_ranks(path)
    shown = found[:_LATE]
    columns = (
        Column(title="rank"),
        *words.numbers(("on it",), "ms"),
        *words.numbers(("share",), "%"),
        Column(title="with", unit="ms"),
    )
    kinds = [f"{kind} {format_percent(share)}" for kind, share in path_kinds(path) if share >= _WORTH_RATIO]
    rest = words.left_out(len(shown), len(found), "ranks, those with most of it")
    title = f"Critical path {per(report.time)}: what it could not be shorter than"
    return (
        *words.table(title, columns, [_on_path(entry) for entry in shown], rest),
        Notes(lines=(words.sentence(f"in all {', '.join(kinds)}"),)),
    )


def _on_path(entry: PathRank) -> tuple[str, ...]:
    parts = [f"{kind} {format_ms(ns)}" for kind, ns in entry.kinds if ns >= _WORTH_RATIO * entry.ns]
    return (
        str(entry.rank), format_ms(entry.ns), format_percent(entry.share), words.sentence(", ".join(parts))
    )  # fmt: skip
