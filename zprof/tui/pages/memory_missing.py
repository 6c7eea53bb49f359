"""What of memory was not measured, why, and what helps: from the report's gaps."""

import textwrap
from collections.abc import Collection

from zprof.model.gaps import MEMORY, RANK_CUT_SHORT, RANK_MISSING, Gap
from zprof.model.report import Report
from zprof.tui.tables import Column, Line, Opens, Table, Word

_WIDTH = 72
_RECORD = "record the job with its memory: zprof record -o RUN -- python ..."


def said_of_rank(report: Report, rank: int) -> str:
    """Why a rank has no memory, in one line."""
    gap = _found(report, (MEMORY,), rank) or _found(report, (RANK_MISSING, RANK_CUT_SHORT), rank)
    return f"not measured: {gap.reason}. {gap.remedy}" if gap else f"not measured. {_RECORD}"


def missing_memory(report: Report) -> list[str]:
    """Lines for a screen that has no memory to show."""
    gaps = [gap for gap in report.gaps if gap.what == MEMORY]
    said = dict.fromkeys((gap.reason, gap.remedy) for gap in gaps) or {("it was not recorded", _RECORD): None}
    lines = ["memory was not measured"]
    for reason, remedy in list(said)[:3]:
        lines += ["", *textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"what helps: {remedy}", _WIDTH)]
    return lines


def missing_table(report: Report, name: str, title: str, what: str, otherwise: str, remedy: str) -> Table:
    """A table that says why it has no rows; ``what``: what the gap is about that tells."""
    gap = _found(report, (what,), None)
    reason, helps = (gap.reason, gap.remedy) if gap else (otherwise, remedy)
    said = [*textwrap.wrap(reason, _WIDTH), *textwrap.wrap(f"what helps: {helps}", _WIDTH)]
    lines = [
        Line(key=str(place), cells=(Word(text),), opens=Opens.GAP, target=place)
        for place, text in enumerate(said)
    ]
    return Table(name=name, title=title, columns=(Column(title="not measured"),), lines=tuple(lines))


def _found(report: Report, about: Collection[str], rank: int | None) -> Gap | None:
    fits = [gap for gap in report.gaps if gap.what in about]
    mine = [gap for gap in fits if gap.rank in (None, rank)] if rank is not None else fits
    return next(iter(mine), None)
