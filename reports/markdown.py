"""Render a page as Markdown for a pull request or an issue, in at most 65,000 characters.

GitHub rejects comments of more than 65,536 characters.  Blocks that do not fit are omitted one by one, and
the last line lists them. Drawings are omitted, because tables have the same numbers.
"""

from collections.abc import Iterator, Sequence

from zprof.reports.layout import escape_prose, format_code, format_code_block
from zprof.reports.page import (
    Block,
    Card,
    Code,
    Facts,
    Icicle,
    Item,
    ItemList,
    KeyFigures,
    Note,
    Page,
    Paragraph,
    VerdictBlock,
    WaitGraph,
)
from zprof.reports.table import Cell, Kind, Row, Table, format_cell
from zprof.reports.text import format_omission, format_table_note, get_column_unit, select_rows

MAX_CHARACTERS = 65_000
#: Characters reserved for the line that lists omitted blocks.
_RESERVED = 1_000
_MAX_CELL, _MAX_TITLE, _MAX_FACTS = 300, 160, 16


def render_markdown(page: Page) -> str:
    """Return all sections in order with as many pieces as fit, and the footer."""
    foot = f"---\n{escape_prose(page.made_by, 80)}{f', {format_code(page.subject)}' if page.subject else ''}"
    remaining = MAX_CHARACTERS - _RESERVED - len(foot)
    texts, omitted = [], []
    for title, is_folded, pieces in _list_parts(page):
        included: list[str] = []
        for piece in pieces:
            if len(_format_part(title, [*included, piece], is_folded=is_folded)) + 2 <= remaining:
                included.append(piece)  # a later, shorter piece may still fit
        if included:
            texts.append(_format_part(title, included, is_folded=is_folded))
            remaining -= len(texts[-1]) + 2
        if len(included) < len(pieces):
            omitted.append(f"{title or 'the head'} ({len(pieces) - len(included)} of {len(pieces)} pieces)")
    if omitted:
        texts.append(
            f"*Left out, since comments are limited in size: {', '.join(omitted)}. `-f json` has everything.*"
        )
    return "\n\n".join([*texts, foot]) + "\n"


def _list_parts(page: Page) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield the title, folded flag and pieces of the head and of each section."""
    mark = f"{page.verdict.mark} " if page.verdict else ""
    subject = f": {format_code(page.subject, _MAX_TITLE)}" if page.subject else ""
    head = [f"## {mark}{escape_prose(page.kind, _MAX_TITLE)}{subject}"]
    for block in page.head:
        head += _list_pieces(block, "")
    yield "", False, head
    for section in page.sections:
        pieces = [f"*{escape_prose(section.note)}*"] if section.note else []
        pieces += [piece for block in section.blocks for piece in _list_pieces(block, section.title)]
        yield section.title, section.detail, pieces


def _format_part(title: str, pieces: Sequence[str], *, is_folded: bool) -> str:
    content = "\n\n".join(pieces)
    if is_folded:
        return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
    return f"### {title}\n\n{content}" if title else content


def _list_pieces(block: Block, section: str) -> list[str]:
    """Return the pieces of a block that can be omitted individually; empty for a drawing."""
    if isinstance(block, VerdictBlock):
        return [f"**{escape_prose(block.text)}**"] if block.text.strip() else []
    if isinstance(block, Paragraph):
        return [escape_prose(block.text)]
    if isinstance(block, Note):
        return [
            f"> **{block.label}**: {escape_prose(block.text)}" if block.label else escape_prose(block.text)
        ]
    if isinstance(block, Code):
        title = f"{block.title.capitalize()}:" if block.title else ""
        if block.title and len(block.lines) == 1:
            return [f"{title} {format_code(block.lines[0], _MAX_CELL)}"]
        if block.brief:
            line, *more = block.brief.split("\n")
            first = format_code(line, _MAX_CELL) if more else escape_prose(line)
            return [" ".join(filter(None, (title, first, *map(escape_prose, more))))]
        return [f"{title}\n\n{format_code_block(block.lines)}".strip()]
    if isinstance(block, ItemList):
        omission = format_omission(len(block.items), block.total, block.noun)
        items = [_format_item(item) for item in block.items]
        if block.tight and items:
            items = ["\n".join(items)]
        return [*items, *_format_omitted(omission)]
    if isinstance(block, KeyFigures):
        return [_format_bullets(_format_figure(*figure) for figure in block.figures)]
    if isinstance(block, Facts):
        return [
            _format_bullets(
                f"{escape_prose(name, _MAX_CELL)}: {escape_prose(value, 600)}" for name, value in block.rows
            )
        ]
    if isinstance(block, Table):
        return _list_table_pieces(block, section)
    if isinstance(block, WaitGraph):
        return _list_pieces(block.text, section)
    if isinstance(block, Icicle):
        return [_format_icicle(block)] if block.max_text_rows else []
    return [_format_card(block)] if isinstance(block, Card) else []


def _format_icicle(block: Icicle) -> str:
    rows = block.select_rows(block.max_text_rows)
    return format_code_block([f"{' ' * box.depth}{' '.join(box.values)}  {box.text}" for box in rows])


def _format_bullets(items: Iterator[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _format_omitted(text: str) -> list[str]:
    return [f"{escape_prose(text)}"] if text else []


def _format_item(item: Item) -> str:
    mark = f"{escape_prose(item.mark)} " if item.mark else ""
    label = f"**{escape_prose(item.label)}**: " if item.label.strip() else ""
    details = "".join(f"; {name}: {escape_prose(text)}" for name, text in item.details)
    remedy = f" → {escape_prose(item.remedy, 600)}" if item.remedy else ""
    return f"- {mark}{label}{escape_prose(item.text)}{details}{remedy}"


def _format_figure(name: str, value: str, note: str) -> str:
    return f"{escape_prose(name, _MAX_CELL)}: **{escape_prose(value, 80)}** ({escape_prose(note, _MAX_CELL)})"


def _list_table_pieces(table: Table, section: str) -> list[str]:
    """Return the caption and table as one piece, then the notes."""
    rows = select_rows(table, 2 * table.max_text_rows)
    title = "" if table.title == section else f"**{escape_prose(table.title, _MAX_TITLE)}**"
    note = escape_prose(format_table_note(table))
    caption = f"{title} ({note})" if title and note else title or note
    table_text = _render_transposed(table, rows) if table.transposed else _render_rows(table, rows)
    omission = format_omission(len(rows), table.total, table.noun)
    notes = [f"- {escape_prose(text)}" for text in table.notes]
    return [
        f"{caption}\n\n{table_text}".strip(),
        *(["\n".join(notes)] if notes else []),
        *_format_omitted(omission),
    ]


def _render_rows(table: Table, rows: Sequence[Row]) -> str:
    indices = [index for index in table.static_columns if table.columns[index].kind is not Kind.BAR]
    columns = [table.columns[index] for index in indices]
    heads = []
    for column in columns:
        unit = get_column_unit(column, table)
        heads.append(escape_prose(f"{column.title}, {unit}" if unit else column.title, _MAX_CELL))
    alignment = ["---:" if column.kind is Kind.NUMBER else "---" for column in columns]
    if table.below:
        heads.append(escape_prose(table.below))
        alignment.append("---")
    body = []
    for row in rows:
        cells = [_format_cell(row.cells[index], table.columns[index].kind) for index in indices]
        cells += [escape_prose(table.below_separator.join(row.below), _MAX_CELL)] if table.below else []
        if row.total:
            cells = [f"**{cell}**" if cell else "" for cell in (f"= {cells[0]}", *cells[1:])]
        body.append(cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, alignment, *body])


def _render_transposed(table: Table, rows: Sequence[Row]) -> str:
    heads = ["", *(_format_cell(row.cells[0], Kind.TEXT) for row in rows)]
    body = []
    for index, column in enumerate(table.columns):
        if index == 0:
            continue
        cells = [
            escape_prose(column.title, _MAX_CELL),
            *(_format_cell(row.cells[index], column.kind) for row in rows),
        ]
        body.append(
            [f"**{cell}**" if cell else "" for cell in cells] if column.title.startswith("=") else cells
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---", *["---:"] * len(rows)], *body])


def _format_cell(cell: Cell, kind: Kind) -> str:
    text = format_cell(cell)
    if text in ("", "-"):
        return text
    return format_code(text, _MAX_CELL) if kind is Kind.NAME else escape_prose(text, _MAX_CELL)


def _format_card(card: Card) -> str:
    parts = [f"**{escape_prose(card.title, _MAX_TITLE)}**: {escape_prose(card.note)}"]
    parts += [escape_prose(card.text)] if card.text.strip() else []
    for label, part in card.parts:
        if isinstance(part, Facts):
            facts = [
                f"- {escape_prose(value, 60)}: {escape_prose(name, _MAX_CELL)}"
                for value, name in part.rows[:_MAX_FACTS]
            ]
            omission = format_omission(len(facts), len(part.rows), "facts")
            parts.append("\n".join([*facts, *(f"- {line}" for line in _format_omitted(omission))]))
        elif isinstance(part, Code):
            parts.append(format_code_block(part.lines))
        else:
            parts.append(f"{label.capitalize()}: {escape_prose(part.text)}")
    return "\n\n".join(parts)
