"""Chapters of plans and predictions as sections of a page."""

from collections.abc import Iterator, Sequence

from zprof.model.gaps import Gap
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Notes, Row, Section, Table
from zprof.reports.html.lines import line_chart
from zprof.reports.plan.basis import Basis
from zprof.reports.plan.grid import Chapter, Grid
from zprof.reports.shown.presenter import grouped_gaps

_MOST_ROWS = 400


def chapter_section(chapter: Chapter) -> Section:
    """Sentences, charts, tables."""
    return Section(
        anchor=chapter.anchor,
        title=chapter.title,
        lead=chapter.lead,
        blocks=tuple(_blocks(chapter)),
    )


def grid_table(grid: Grid) -> Table:
    """A table; its unit stands in its caption, and in the heads of columns that have another."""
    rows = tuple(
        Row(
            cells=tuple(words.sentence(cell) for cell in (row.name, *row.cells)),
            total=row.total,
        )
        for row in grid.rows[:_MOST_ROWS]
    )
    unit = f", {grid.unit}" if grid.unit else ""
    note = f" ({words.sentence(grid.note)})" if grid.note else ""
    return Table(
        caption=f"{words.sentence(grid.title)}{unit}{note}",
        columns=(
            Column(title=words.name(grid.head)),
            *(
                Column(
                    title=words.name(column.title), unit=column.unit or grid.unit, numeric=not column.words
                )
                for column in grid.columns
            ),
        ),
        rows=rows,
        notes=(*map(words.sentence, grid.notes), *words.left_out(len(rows), len(grid.rows), "rows")),
    )


def basis_table(found: Sequence[Basis]) -> tuple[Table, ...]:
    """What the figures rest on: key, figures, formula, source, what deviates."""
    rows = [
        tuple(
            words.sentence(said) or words.NOTHING
            for said in (
                entry.key,
                entry.figures,
                entry.assumption.formula,
                entry.assumption.source,
                entry.assumption.deviation,
            )
        )
        for entry in found
    ]
    titles = ("assumption", "figures", "formula", "source", "deviates")
    columns = [Column(title=title) for title in titles]
    return words.table("Assumptions by key", columns, rows, folded_from=_MOST_ROWS)


def gap_table(gaps: Sequence[Gap], caption: str) -> tuple[Table, ...]:
    """What is not known, why, and what would make it known."""
    groups = grouped_gaps(gaps)
    rows = [
        tuple(words.sentence(said) or words.NOTHING for said in (group.what, group.reason, group.remedy))
        for group in groups[:_MOST_ROWS]
    ]
    columns = [Column(title=title) for title in ("what", "reason", "remedy")]
    return words.table(f"{caption} ({len(groups):,})", columns, rows, folded_from=100)


def basis_section(found: Sequence[Basis]) -> tuple[Section, ...]:
    """What the figures rest on, as a section."""
    lead = "Each predicted figure names one of these."
    return _section("basis", "What the figures rest on", lead, basis_table(found))


def plan_gap_section(gaps: Sequence[Gap]) -> tuple[Section, ...]:
    """What is not known, as a section."""
    lead = "Unknown is never zero: what is missing, and why."
    return _section("gaps", "Not known", lead, gap_table(gaps, "Not known"))


def _section(anchor: str, title: str, lead: str, blocks: Sequence[Block]) -> tuple[Section, ...]:
    return (Section(anchor=anchor, title=title, lead=lead, blocks=tuple(blocks)),) if blocks else ()


def _blocks(chapter: Chapter) -> Iterator[Block]:
    if chapter.sentences:
        yield Notes(lines=tuple(map(words.sentence, chapter.sentences)))
    yield from map(line_chart, chapter.charts)
    yield from map(grid_table, chapter.grids)
