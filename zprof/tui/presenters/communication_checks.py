"""Build the table of consistency checks of the communication totals.

It checks bytes against the ZeRO formula and exposed time against the ledger, and shows the clock alignment.
"""

from zprof.model.gaps import GapKind
from zprof.model.leaves import read_value
from zprof.model.quantities import UNKNOWN, Aggregation
from zprof.model.report import Report
from zprof.model.time import Alignment, mean_over_ranks
from zprof.reports.table import Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

#: Largest difference between a sum and the ledger, relative to the larger value, that counts as agreement.
_TOLERANCE_RATIO = 0.01
_EDGE_NOTE = "differ: collectives that cross the window edges"


def build_checks_table(loaded: LoadedRun) -> Table:
    """Build four rows: bytes against the formula, two exposed terms against the ledger, clocks."""
    lines = [_make_volume_row(loaded), *_make_exposed_rows(loaded), _make_clocks_row(loaded)]
    return Table(
        name="checks",
        title="",
        columns=(
            Column(title="check", kind=Kind.TEXT),
            Column(
                title="measured",
            ),
            Column(title="reference", kind=Kind.TEXT),
            Column(
                title="expected",
            ),
            Column(
                title="result",
            ),
            Column(title="meaning", kind=Kind.TEXT, takes_rest=True),
        ),
        rows=tuple(
            Row(
                key=get_text(line[0]),
                cells=line,
                opens=Opens.GAP if any(get_text(cell) == UNKNOWN for cell in line) else Opens.NOTHING,
            )
            for line in lines
        ),
        help=f"Bytes {loaded.report.time.basis}, compared with the ZeRO formula for the stage. "
        "Exposed time of all collectives, averaged over the ranks, compared with the terms of the ledger: "
        "they differ by collectives that "
        "cross the edges of the window, because a collective is counted in the step that launched it. "
        "Uncertainty of the clock alignment between ranks, from collectives matched across ranks.",
    )


def _make_volume_row(loaded: LoadedRun) -> tuple[Cell, ...]:
    reasons = "; ".join(gap.reason for gap in loaded.report.gaps if gap.kind is GapKind.VOLUME)
    report, title = loaded.report, f"bytes {loaded.report.time.basis}"
    if loaded.report.volume is None:
        is_single_rank = loaded.report.run.world_size == 1 and not reasons
        return (
            title,
            ("none" if is_single_rank else UNKNOWN),
            "formula",
            "",
            "",
            Marked("single rank" if is_single_rank else reasons, Mark.MUTED),
        )
    return (
        title,
        read_value(report, "volume.seen_bytes"),
        "formula",
        read_value(report, "volume.expected_bytes"),
        read_value(report, "volume.ratio"),
        Marked(reasons or "relative to the ZeRO formula for this stage", Mark.MUTED),
    )


def _make_exposed_rows(loaded: LoadedRun) -> list[tuple[Cell, ...]]:
    report, stem = loaded.report, "time.exposed_in_collectives"
    return [
        (
            f"exposed {term}",
            read_value(report, f"{stem}.{term}_ns"),
            "ledger",
            read_value(
                report,
                f"time.per_rank[*].exposed_{term}_ns",
                how=Aggregation.MEAN,
            ),
            "",
            Marked(_describe_agreement(loaded.report, term), Mark.MUTED),
        )
        for term in ("transfer", "wait")
    ]


def _describe_agreement(report: Report, term: str) -> str:
    sums, ranks = report.time.exposed_in_collectives, report.time.per_rank
    if sums is None or not ranks:
        return "no collective was recorded"
    ledger = mean_over_ranks(ranks, f"exposed_{term}_ns")
    total = getattr(sums, f"{term}_ns")
    noise_ns = max(rank.noise_floor_ns for rank in ranks)
    if abs(total - ledger) > max(_TOLERANCE_RATIO * max(total, ledger), noise_ns):
        return _EDGE_NOTE
    return "sum, averaged over ranks" if _has_several_groups(report) else "sum of all kinds"


def _has_several_groups(report: Report) -> bool:
    return len({entry.group for entry in report.time.collectives}) > 1


def _make_clocks_row(loaded: LoadedRun) -> tuple[Cell, ...]:
    report, alignment = loaded.report, loaded.report.time.alignment
    if alignment is None or len(alignment.offsets_ns) < 2:
        reason = Marked(_explain_missing_alignment(loaded.report), Mark.MUTED)
        return ("clocks", "not aligned", "", "", "", reason)
    uncertainty = read_value(report, "time.alignment.uncertainty_ns")
    matched = read_value(report, "time.alignment.matched")
    method, unmatched = _format_method(alignment), read_value(report, "time.alignment.unmatched")
    rest = (
        (unmatched, Marked(f"unmatched; {method}", Mark.MUTED))
        if unmatched.number
        else ("", Marked(method, Mark.MUTED))
    )
    return ("clock error", uncertainty, "matched", matched, *rest)


def _explain_missing_alignment(report: Report) -> str:
    if report.run.world_size == 1:
        return "single rank"
    return "the ranks share no collective" if len(report.run.ranks_loaded) > 1 else "only one rank is loaded"


def _format_method(alignment: Alignment) -> str:
    corrections = []
    if alignment.shifts:
        corrections.append(f"order shifted on {len(alignment.shifts)} ranks")
    if alignment.excluded:
        corrections.append(f"{len(alignment.excluded)} ranks excluded")
    return ", ".join([alignment.method, *corrections])
