"""What single changes would make of the run, in Markdown: side by side, then folded term by term."""

from zprof.model.report import Report
from zprof.reports.escape_markdown import prose
from zprof.reports.markdown.blocks import bullets
from zprof.reports.markdown.grid import basis_blocks, grid_blocks, plan_gap_blocks
from zprof.reports.plan.basis import outlook_basis
from zprof.reports.plan.outlook import outlook_answers, outlook_chapters
from zprof.reports.plan.prediction_tables import summary_grid


def outlook_blocks(report: Report) -> list[str]:
    """Nothing where nobody asked."""
    found = report.outlook
    if found is None:
        return []
    said = bullets([prose(line) for line in outlook_answers(found)])
    return [said, *grid_blocks(summary_grid(found)), *plan_gap_blocks(found.gaps)]


def outlook_detail_blocks(report: Report) -> list[str]:
    """Term by term, what was fitted to the run, and what each figure rests on."""
    found = report.outlook
    if found is None:
        return []
    grids = [grid for chapter in outlook_chapters(found)[1:] for grid in chapter.grids]
    return [*grid_blocks(grids), *basis_blocks(outlook_basis(found))]
