"""Tables of plans and predictions, what they rest on and what is not known, in Markdown."""

from collections.abc import Sequence

from zprof.model.gaps import Gap
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import bullets, left_out, table
from zprof.reports.plan.basis import Basis
from zprof.reports.plan.grid import Grid
from zprof.reports.shown.presenter import grouped_gaps

_MOST_ROWS, _MOST_GAPS = 60, 40
_CELL = 160


def grid_blocks(grids: Sequence[Grid]) -> list[str]:
    """A caption, a table, its notes, for each of them."""
    return [block for grid in grids for block in _grid(grid)]


def basis_blocks(found: Sequence[Basis]) -> list[str]:
    """Each assumption with its formula, its figures, its source, and what deviates from it."""
    return [bullets([_basis(entry) for entry in found])] if found else []


def plan_gap_blocks(gaps: Sequence[Gap]) -> list[str]:
    """What is not known, why, and what would make it known."""
    groups = grouped_gaps(gaps)
    items = []
    for group in groups[:_MOST_GAPS]:
        remedy = f" → {prose(group.remedy)}" if group.remedy else ""
        items.append(f"**{prose(group.what)}**{prose(group.where)}: {prose(group.reason)}{remedy}")
    return [bullets(items), *left_out(len(items), len(groups), "gaps")] if items else []


def _grid(grid: Grid) -> list[str]:
    unit = f", {grid.unit}" if grid.unit else ""
    note = f" ({prose(grid.note)})" if grid.note else ""
    head = [prose(grid.head, _CELL), *(_head(column.title, column.unit) for column in grid.columns)]
    words = [0, *(place for place, column in enumerate(grid.columns, start=1) if column.words)]
    rows = []
    for row in grid.rows[:_MOST_ROWS]:
        cells = [prose(cell, _CELL) for cell in (row.name, *row.cells)]
        rows.append([f"**{cell}**" if cell and row.total else cell for cell in cells])
    return [
        f"**{prose(grid.title, _CELL)}**{unit}{note}\n\n{table(head, rows, words=words)}",
        *left_out(len(rows), len(grid.rows), "rows"),
        *([bullets([prose(note) for note in grid.notes])] if grid.notes else []),
    ]


def _head(title: str, unit: str) -> str:
    return prose(f"{title}, {unit}" if unit else title, _CELL)


def _basis(entry: Basis) -> str:
    assumption = entry.assumption
    parts = [f"{code(entry.key)}: {prose(assumption.formula)}"]
    parts += [f"Figures: {prose(entry.figures)}."] if entry.figures else []
    parts += [f"Source: {prose(assumption.source)}."] if assumption.source else []
    parts += [f"But: {prose(assumption.deviation)}."] if assumption.deviation else []
    return " ".join(parts)
