"""Explain why memory, or one memory table, was not measured."""

import textwrap
from collections.abc import Collection

from zprof.model.gaps import Gap, GapKind
from zprof.model.report import Report
from zprof.reports.table import Column, Kind, Opens, Row, Table

_WIDTH = 72
_RECORD = "record the job including memory: zprof record -o RUN -- python ..."


def explain_missing_rank(report: Report, rank: int) -> str:
    """Explain in one line why a rank has no memory data."""
    gap = _find_gap(report, (GapKind.MEMORY,), rank) or _find_gap(
        report, (GapKind.RANK_MISSING, GapKind.RANK_CUT_SHORT), rank
    )
    return f"not measured: {gap.reason}. {gap.remedy}" if gap else f"not measured. {_RECORD}"


def explain_missing_memory(report: Report) -> list[str]:
    """Explain in a few lines why there is no memory data."""
    gaps = [gap for gap in report.gaps if gap.kind is GapKind.MEMORY]
    reasons = dict.fromkeys((gap.reason, gap.remedy) for gap in gaps)
    lines = ["memory was not measured"]
    for reason, remedy in list(reasons or {("it was not recorded", _RECORD): None})[:3]:
        lines += ["", *textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"remedy: {remedy}", _WIDTH)]
    return lines


def build_missing_table(
    report: Report, name: str, title: str, kind: GapKind | None, reason: str, remedy: str
) -> Table:
    """Build an empty table with the reason for being empty.

    ``kind``: the gap with reason and remedy; without such a gap, the arguments are used.
    """
    gap = _find_gap(report, (kind,), None) if kind else None
    if gap:
        reason, remedy = gap.reason, gap.remedy
    texts = [*textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"remedy: {remedy}", _WIDTH)]
    lines = [
        Row(key=str(number), cells=(text,), opens=Opens.GAP, target=number)
        for number, text in enumerate(texts)
    ]
    return Table(
        name=name, title=title, columns=(Column(title="not measured", kind=Kind.TEXT),), rows=tuple(lines)
    )


def _find_gap(report: Report, kinds: Collection[GapKind], rank: int | None) -> Gap | None:
    gaps = [gap for gap in report.gaps if gap.kind in kinds]
    rank_gaps = [gap for gap in gaps if gap.rank in (None, rank)] if rank is not None else gaps
    return next(iter(rank_gaps), None)
