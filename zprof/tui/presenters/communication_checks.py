"""Checks of the communication totals.

Bytes against the ZeRO formula, exposed time against the ledger, clock alignment.
"""

from statistics import fmean

from zprof.model.gaps import GapKind
from zprof.model.report import Report
from zprof.model.time import Alignment
from zprof.reports.presenters.time_figures import unsplit_ns
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, UNKNOWN, Aggregation, Unit, figure, make_bound_figure
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, TextCell

#: Relative difference, of the larger value, up to which a sum and the ledger agree.
_TOLERANCE_RATIO = 0.01
_DIFFERS_AT_EDGES = "differ: what runs across the ends of the window"


def build_checks_table(loaded: LoadedRun) -> Table:
    """Return four rows: bytes against the formula, two exposed terms against the ledger, clocks."""
    lines = [_volume(loaded), *_exposed(loaded), _clocks(loaded)]
    return Table(
        name="checks",
        title="",
        columns=(
            Column(title="what"),
            Column(title="seen", numeric=True),
            Column(title="against"),
            Column(title="is", numeric=True),
            Column(title="result", numeric=True),
            Column(title="which says", rest=True),
        ),
        lines=tuple(
            Line(
                key=line[0].text,
                cells=line,
                opens=Opens.GAP if any(cell.text == UNKNOWN for cell in line) else Opens.NOTHING,
            )
            for line in lines
        ),
        help="Bytes of a step against the ZeRO formula of its stage; the exposed time of all "
        "collectives, each weighted with its rank, against the terms of the ledger: they differ by what "
        "runs across the ends of the window, because a collective belongs to the step that launched it; "
        "and how exactly the "
        "clocks of the ranks are known, from collectives matched across ranks.",
    )


def _volume(loaded: LoadedRun) -> tuple[Cell, ...]:
    reasons = "; ".join(gap.reason for gap in loaded.report.gaps if gap.kind is GapKind.VOLUME)
    tree, what = loaded.tree, TextCell("bytes per step")
    if loaded.report.volume is None:
        alone = loaded.report.run.world_size == 1 and not reasons
        return (
            what,
            TextCell("none" if alone else UNKNOWN),
            TextCell("formula"),
            TextCell(""),
            TextCell(""),
            TextCell("one rank alone" if alone else reasons, Mark.MUTED),
        )
    return (
        what,
        figure(tree, Unit.BYTES, "volume.seen_bytes"),
        TextCell("formula"),
        figure(tree, Unit.BYTES, "volume.expected_bytes"),
        figure(tree, Unit.RATIO, "volume.ratio"),
        TextCell(reasons or "of its stage's formula", Mark.MUTED),
    )


def _exposed(loaded: LoadedRun) -> list[tuple[Cell, ...]]:
    tree, found = loaded.tree, "time.exposed_in_collectives"
    bound = unsplit_ns(loaded.report.time.per_rank) > 0
    signs = {"transfer": AT_MOST, "wait": AT_LEAST} if bound else {}
    return [
        (
            TextCell(f"exposed {what}"),
            make_bound_figure(tree, Unit.NS, f"{found}.{what}_ns", sign=signs.get(what, EXACT)),
            TextCell("ledger"),
            make_bound_figure(
                tree,
                Unit.NS,
                f"time.per_rank[*].exposed_{what}_ns",
                how=Aggregation.MEAN,
                sign=signs.get(what, EXACT),
            ),
            TextCell(""),
            TextCell(_agreement(loaded.report, what), Mark.MUTED),
        )
        for what in ("transfer", "wait")
    ]


def _agreement(report: Report, what: str) -> str:
    found, ranks = report.time.exposed_in_collectives, report.time.per_rank
    if found is None or not ranks:
        return "no collective was seen"
    ledger = fmean(getattr(rank, f"exposed_{what}_ns") for rank in ranks)
    mine = getattr(found, f"{what}_ns")
    floor = max(rank.noise_floor_ns for rank in ranks)
    if abs(mine - ledger) > max(_TOLERANCE_RATIO * max(mine, ledger), floor):
        return _DIFFERS_AT_EDGES
    return "sum, weighted by rank" if _has_parts(report) else "sum of all kinds"


def _has_parts(report: Report) -> bool:
    return len({entry.group for entry in report.time.collectives}) > 1


def _clocks(loaded: LoadedRun) -> tuple[Cell, ...]:
    tree, alignment = loaded.tree, loaded.report.time.alignment
    if alignment is None or len(alignment.offsets_ns) < 2:
        why = TextCell(_explain_no_clocks(loaded.report), Mark.MUTED)
        return (TextCell("clocks"), TextCell("not aligned"), TextCell(""), TextCell(""), TextCell(""), why)
    uncertainty = figure(tree, Unit.NS, "time.alignment.uncertainty_ns")
    matched = figure(tree, Unit.COUNT, "time.alignment.matched")
    how, left = _format_method(alignment), figure(tree, Unit.COUNT, "time.alignment.unmatched")
    rest = (
        (left, TextCell(f"unmatched; {how}", Mark.MUTED))
        if left.value
        else (TextCell(""), TextCell(how, Mark.MUTED))
    )
    return (TextCell("clocks, within"), uncertainty, TextCell("matched"), matched, *rest)


def _explain_no_clocks(report: Report) -> str:
    if report.run.world_size == 1:
        return "one rank alone"
    return "the ranks share no collective" if len(report.run.ranks_loaded) > 1 else "only one rank is loaded"


def _format_method(alignment: Alignment) -> str:
    repairs = []
    if alignment.shifts:
        repairs.append(f"order moved on {len(alignment.shifts)} ranks")
    if alignment.excluded:
        repairs.append(f"{len(alignment.excluded)} ranks left out")
    return ", ".join([alignment.method, *repairs])
