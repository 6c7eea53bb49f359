"""The Markdown backend: a page for a pull request or an issue, under 65,000 characters.

GitHub refuses a comment of more than 65,536 characters.  What does not fit is left out piece by piece, and
the document says what.  Drawings are left out: tables have their numbers.
"""

from collections.abc import Iterator, Sequence

from zprof.reports.escape import escape_prose, format_code, format_code_block
from zprof.reports.page import (
    Bar,
    Block,
    Card,
    Cell,
    Code,
    Facts,
    Item,
    ItemList,
    KeyFigures,
    Kind,
    Note,
    Page,
    Paragraph,
    Row,
    Table,
    Verdict,
)
from zprof.reports.text_table import format_omission, format_table_note, get_column_unit, select_rows

MAX_CHARACTERS = 65_000
#: Room for the line that says what was left out.
_RESERVED = 1_000
_MAX_CELL, _MAX_TITLE, _MAX_FACTS = 300, 160, 16


def render_markdown(page: Page) -> str:
    """Return all sections in their order, of each as many pieces as fit, and the foot."""
    foot = f"---\n{escape_prose(page.made_by, 80)}{f', {format_code(page.subject)}' if page.subject else ''}"
    min_width = MAX_CHARACTERS - _RESERVED - len(foot)
    texts, cut = [], []
    for title, is_folded, pieces in _parts(page):
        kept = _that_fit(title, pieces, min_width, is_folded=is_folded)
        if kept:
            texts.append(_part(title, kept, is_folded=is_folded))
            min_width -= len(texts[-1]) + 2
        if len(kept) < len(pieces):
            cut.append(f"{title or 'the head'} ({len(pieces) - len(kept)} of {len(pieces)} pieces)")
    if cut:
        texts.append(f"*Left out, for a comment holds no more: {', '.join(cut)}. `-f json` has all of it.*")
    return "\n\n".join([*texts, foot]) + "\n"


def _parts(page: Page) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield title, whether it is folded, and pieces of the head and of each section."""
    mark = f"{page.verdict.mark} " if page.verdict else ""
    subject = f": {format_code(page.subject, _MAX_TITLE)}" if page.subject else ""
    head = [f"## {mark}{escape_prose(page.kind, _MAX_TITLE)}{subject}"]
    for block in page.head:
        head += _pieces(block, "")
    yield "", False, head
    for section in page.sections:
        pieces = [f"*{escape_prose(section.note)}*"] if section.note else []
        pieces += [piece for block in section.blocks for piece in _pieces(block, section.title)]
        yield section.title, section.detail, pieces


def _that_fit(title: str, pieces: Sequence[str], min_width: int, *, is_folded: bool) -> list[str]:
    kept: list[str] = []
    for piece in pieces:
        if len(_part(title, [*kept, piece], is_folded=is_folded)) + 2 <= min_width:
            kept.append(piece)  # a shorter one that comes later may still fit
    return kept


def _part(title: str, pieces: Sequence[str], *, is_folded: bool) -> str:
    content = "\n\n".join(pieces)
    if is_folded:
        return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
    return f"### {title}\n\n{content}" if title else content


def _pieces(block: Block, section: str) -> list[str]:
    """Return the pieces of a block, each of which can be left out alone; none for a drawing."""
    if isinstance(block, Verdict):
        return [f"**{escape_prose(block.text)}**"] if block.text.strip() else []
    if isinstance(block, Paragraph):
        return [escape_prose(block.text)]
    if isinstance(block, Note):
        return [
            f"> **{block.label}**: {escape_prose(block.text)}" if block.label else escape_prose(block.text)
        ]
    if isinstance(block, Code):
        return _code_pieces(block)
    if isinstance(block, ItemList):
        left = format_omission(len(block.items), block.total, block.what)
        return [*(_item(item) for item in block.items), *_left(left)]
    if isinstance(block, KeyFigures):
        return [_bullets(_figure(*figure) for figure in block.figures)]
    if isinstance(block, Facts):
        return [
            _bullets(
                f"{escape_prose(name, _MAX_CELL)}: {escape_prose(value, 600)}" for name, value in block.rows
            )
        ]
    if isinstance(block, Table):
        return _table_pieces(block, section)
    return [_card(block)] if isinstance(block, Card) else []


def _bullets(items: Iterator[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _left(text: str) -> list[str]:
    return [f"{escape_prose(text)}"] if text else []


def _code_pieces(block: Code) -> list[str]:
    title = f"{block.title.capitalize()}:" if block.title else ""
    if block.title and len(block.lines) == 1:
        return [f"{title} {format_code(block.lines[0], _MAX_CELL)}"]
    if block.brief:
        return [f"{title} {escape_prose(block.brief)}".strip()]
    return [f"{title}\n\n{format_code_block(block.lines)}".strip()]


def _item(item: Item) -> str:
    mark = f"{escape_prose(item.mark)} " if item.mark else ""
    label = f"**{escape_prose(item.label)}**: " if item.label.strip() else ""
    details = "".join(f"; {name}: {escape_prose(text)}" for name, text in item.details)
    remedy = f" → {escape_prose(item.remedy, 600)}" if item.remedy else ""
    return f"- {mark}{label}{escape_prose(item.text)}{details}{remedy}"


def _figure(name: str, value: str, note: str) -> str:
    return f"{escape_prose(name, _MAX_CELL)}: **{escape_prose(value, 80)}** ({escape_prose(note, _MAX_CELL)})"


def _table_pieces(table: Table, section: str) -> list[str]:
    """Return caption and table as one piece, then its notes."""
    rows = select_rows(table, 2 * table.max_text_rows)
    title = "" if table.title == section else f"**{escape_prose(table.title, _MAX_TITLE)}**"
    note = escape_prose(format_table_note(table))
    caption = f"{title} ({note})" if title and note else title or note
    drawn = _sideways(table, rows) if table.sideways else _upright(table, rows)
    left = format_omission(len(rows), table.total, table.what)
    notes = [f"- {escape_prose(text)}" for text in table.notes]
    return [f"{caption}\n\n{drawn}".strip(), *(["\n".join(notes)] if notes else []), *_left(left)]


def _upright(table: Table, rows: Sequence[Row]) -> str:
    shown = [at for at, column in enumerate(table.columns) if column.kind is not Kind.BAR]
    columns = [table.columns[at] for at in shown]
    heads = [_head(column.title, get_column_unit(column, table)) for column in columns]
    line = ["---:" if column.kind is Kind.NUMBER else "---" for column in columns]
    if table.below:
        heads.append(escape_prose(table.below))
        line.append("---")
    body = []
    for row in rows:
        cells = [_cell(row.cells[at], table.columns[at].kind) for at in shown]
        cells += [escape_prose(" ← ".join(row.below), _MAX_CELL)] if table.below else []
        if row.total:
            cells = [f"**{cell}**" if cell else "" for cell in (f"= {cells[0]}", *cells[1:])]
        body.append(cells)
    return _grid([heads, line, *body])


def _sideways(table: Table, rows: Sequence[Row]) -> str:
    heads = ["", *(_cell(row.cells[0], Kind.TEXT) for row in rows)]
    body = []
    for at, column in enumerate(table.columns):
        if at == 0:
            continue
        cells = [escape_prose(column.title, _MAX_CELL), *(_cell(row.cells[at], column.kind) for row in rows)]
        body.append(
            [f"**{cell}**" if cell else "" for cell in cells] if column.title.startswith("=") else cells
        )
    return _grid([heads, ["---", *["---:"] * len(rows)], *body])


def _grid(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _head(title: str, unit: str) -> str:
    return escape_prose(f"{title}, {unit}" if unit else title, _MAX_CELL)


def _cell(cell: Cell, kind: Kind) -> str:
    if isinstance(cell, Bar):
        return ""
    if cell in ("", "-"):
        return cell
    return format_code(cell, _MAX_CELL) if kind is Kind.NAME else escape_prose(cell, _MAX_CELL)


def _card(card: Card) -> str:
    parts = [f"**{escape_prose(card.title, _MAX_TITLE)}**: {escape_prose(card.note)}"]
    parts += [escape_prose(card.text)] if card.text.strip() else []
    for label, part in card.parts:
        if isinstance(part, Facts):
            facts = [
                f"- {escape_prose(value, 60)}: {escape_prose(name, _MAX_CELL)}"
                for value, name in part.rows[:_MAX_FACTS]
            ]
            left = format_omission(len(facts), len(part.rows), "facts")
            parts.append("\n".join([*facts, *(f"- {line}" for line in _left(left))]))
        elif isinstance(part, Code):
            parts.append(format_code_block(part.lines))
        else:
            parts.append(f"{label.capitalize()}: {escape_prose(part.text)}")
    return "\n\n".join(parts)
