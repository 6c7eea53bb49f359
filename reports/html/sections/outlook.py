"""What single changes would make of the run: all side by side, each term by term, and what that rests on."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.model.report import Report
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Notes
from zprof.reports.html.grid import basis_table, gap_table, grid_table
from zprof.reports.plan.basis import outlook_basis
from zprof.reports.plan.outlook import outlook_answers, outlook_chapters


def outlook(report: Report) -> Sequence[Block]:
    """Nothing where nobody asked."""
    found = report.outlook
    if found is None:
        return ()
    first, *more = outlook_chapters(found) or (None,)
    return (
        Notes(lines=tuple(map(words.sentence, outlook_answers(found)))),
        *(map(grid_table, first.grids) if first else ()),
        *(replace(grid_table(grid), folded=True) for chapter in more if chapter for grid in chapter.grids),
        *gap_table(found.gaps, "Not predicted"),
        *basis_table(outlook_basis(found)),
    )
