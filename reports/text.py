"""Render a page as plain text for a terminal, without drawings whose numbers are in a table.

Colour depends on the block, not on its text: a name from a recording cannot look like a status. Colour codes
are added to escaped lines and never change their text.

A table that is too wide is narrowed in steps: headers wrap, column gaps shrink, long cells wrap, and finally
the columns are split into two tables, one below the other. Nothing is cut.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from zprof.base.formatting import display_width, printable, shorten
from zprof.reports.layout import (
    INDENT,
    escape_log_line,
    format_fix_line,
    get_page_width,
    get_shade,
    lay_out_heat_map,
    render_bar,
    render_heading,
    wrap,
    wrap_sentence,
)
from zprof.reports.page import (
    GAPS,
    Block,
    Card,
    Code,
    Explanation,
    Facts,
    HeatMap,
    Icicle,
    Item,
    ItemList,
    KeyFigures,
    Note,
    Page,
    Paragraph,
    Section,
    VerdictBlock,
    WaitGraph,
)
from zprof.reports.table import Bar, Cell, Column, Kind, Row, Table, format_cell

#: Minimum width of a text column and of the name column; maximum width of a number before it wraps.
_MIN_WORDS, _MIN_NAME = 12, 12
#: Words up to this length are not broken if other columns can shrink.
_MAX_WORD = 24
_MAX_NUMBER = 20
#: Limits for hostile input; real text is shorter.
_MAX_CELL, _MAX_LINES = 400, 12
_BAR_WIDTH = 24
#: Units omitted from headers: the cells show the unit or need none.
_OMITTED_UNITS = frozenset({"", "%", "ratio", "count", "bytes", "bytes/s", "time", "median"})
#: Width of the label column in a card, and maximum length of fact names.
_LABEL, _MAX_FACT_NAME = 10, 36
#: List item labels up to this width are aligned.
_MAX_SHORT_LABEL = 14
_CARD = "    "
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_TONES: Mapping[str, str] = {"ok": _GREEN, "slower": _RED, "risk": _YELLOW, "inconclusive": _YELLOW}
_MARKS: Mapping[str, str] = {"✓": _GREEN, "✗": _RED, "!": _YELLOW, "?": _YELLOW}
_SEVERITIES: Mapping[str, str] = {"high": _RED, "medium": _YELLOW, "low": _BOLD}
_CONFIDENCES: Mapping[str, str] = {"high": _GREEN, "medium": _YELLOW, "low": _DIM}
#: Mark of a list item or row; continuation lines are indented further.
_MARK = re.compile(rf"^{INDENT}([{''.join(_MARKS)}]) ")
_STATUS = re.compile(r"[A-Z]{2,}(?: [A-Z]{2,})*")
_CONFIDENCE_NOTE = re.compile(r"\b(high|medium|low) confidence$")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")


class _Grid(Struct, frozen=True):
    """Formatted cells of a table; ``left``: the column is left-aligned; ``min_width``: its minimum width."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[bool, ...]
    min_width: tuple[int, ...]


def render_table(table: Table) -> list[str]:
    """Return the heading, rows and notes of a table."""
    rows = select_rows(table, table.max_text_rows)
    # Columns with a non-empty cell in these rows, and the name column.
    columns = [
        at
        for at in table.static_columns
        if not table.columns[at].wide and (at == 0 or any(row.cells[at] != "" for row in rows))
    ]
    lifted = [at for at in columns if table.columns[at].lifted]
    # Group the rows by label, in order of first appearance.
    labels = [_format_lifted(table.columns, row, lifted) for row in rows]
    groups: dict[str, list[Row]] = {}
    for row, label in zip(rows, labels, strict=True):
        groups.setdefault(label, []).append(row)
    rows = [row for group in groups.values() for row in group]
    group_labels = [_format_lifted(table.columns, row, lifted) for row in rows]
    has_one_label = len(set(group_labels)) == 1
    notes = [format_table_note(table), group_labels[0] if has_one_label else ""]
    lines = render_heading(printable(table.title).upper(), ", ".join(filter(None, notes)))
    grid = _build_grid(table, rows, [at for at in columns if at not in lifted])
    below = [row.below for row in rows] if table.below else []
    lines += _lay_out(grid, [] if has_one_label else group_labels, below)
    for note in table.notes:
        lines += wrap(printable(note), first=f"{INDENT}* ")
    return [*lines, *(wrap(left) if (left := format_omission(len(rows), table.total, table.noun)) else [])]


def format_table_note(table: Table) -> str:
    """Describe the numbers of a table, such as ``ms per step, mean of the ranks``."""
    note = printable(table.note)
    if note.startswith(("per ", "in ")):
        return f"{table.unit} {note}".strip()
    return ", ".join(filter(None, (table.unit, note)))


def select_rows(table: Table, max_rows: int) -> list[Row]:
    """Return the ``max_rows`` most important rows, in table order."""
    if len(table.rows) <= max_rows:
        return list(table.rows)
    indices = sorted((table.order or range(len(table.rows)))[:max_rows])
    return [table.rows[at] for at in indices]


def format_omission(shown: int, total: int | None, noun: str) -> str:
    """Return how many rows are shown and where to find all; empty if no row is omitted."""
    if total is None or shown >= total:
        return ""
    return f"{shown:,} of {total:,} {noun}; all: -f json"


def get_column_unit(column: Column, table: Table) -> str:
    """Return the unit to print in a column header; empty if the table or the cells already show it."""
    unit = column.unit
    return "" if unit in _OMITTED_UNITS or unit == table.unit or unit in table.note else unit


def _format_lifted(columns: Sequence[Column], row: Row, lifted: Sequence[int]) -> str:
    return ", ".join(f"{columns[at].title} {printable(format_cell(row.cells[at]))}" for at in lifted)


def _build_grid(table: Table, rows: Sequence[Row], shown: Sequence[int]) -> _Grid:
    """Format all cells; a transposed table swaps rows and columns."""
    columns = [table.columns[at] for at in shown]
    cells = [tuple(_format_cell(row.cells[at]) for at in shown) for row in rows]
    names = [_format_row_name(row) for row in rows]
    heads = [_format_header(column, table) for column in columns]
    if not table.transposed:
        return _Grid(
            heads=tuple(heads),
            rows=tuple((name, *row[1:]) for name, row in zip(names, cells, strict=True)),
            left=tuple(at == 0 or column.kind is not Kind.NUMBER for at, column in enumerate(columns)),
            min_width=tuple(column.min_width for column in columns),
        )
    return _Grid(
        heads=("", *names),
        rows=tuple((heads[at], *(row[at] for row in cells)) for at in range(1, len(heads))),
        left=(True, *(False for _ in names)),
        min_width=(0,) * (len(names) + 1),
    )


def _format_row_name(row: Row) -> str:
    name = printable(row.short) if row.short else _format_cell(row.cells[0])
    return f"= {name}" if row.total and not name.startswith("=") else name


def _format_cell(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return render_bar(cell.share, _BAR_WIDTH)
    return shorten(printable(format_cell(cell)), _MAX_CELL)


def _format_header(column: Column, table: Table) -> str:
    if column.kind is Kind.BAR:
        return ""
    unit = get_column_unit(column, table)
    return printable(f"{column.title} {unit}" if unit else column.title)


def _lay_out(grid: _Grid, group_labels: Sequence[str], below: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a grid, split into two tables if too wide."""
    for gap, is_wrapped in ((2, False), (2, True), (1, True)):
        widths = _fit_widths(grid, gap, wrap_heads=is_wrapped)
        if widths is not None:
            return list(_draw_rows(grid, widths, gap, group_labels, below))
    count = len(grid.heads)
    if count <= 2:
        min_width = get_page_width() - len(INDENT) - _MIN_NAME - 1
        return list(_draw_rows(grid, [_MIN_NAME, *[min_width] * (count - 1)], 1, group_labels, below))
    half = (count + 1) // 2
    first, second = range(1, half), range(half, count)
    return [
        *_lay_out(_select_columns(grid, first), group_labels, []),
        *_lay_out(_select_columns(grid, second), group_labels, below),
    ]


def _select_columns(grid: _Grid, columns: Sequence[int]) -> _Grid:
    indices = (0, *columns)
    return _Grid(
        heads=tuple(grid.heads[at] for at in indices),
        rows=tuple(tuple(row[at] for at in indices) for row in grid.rows),
        left=tuple(grid.left[at] for at in indices),
        min_width=tuple(grid.min_width[at] for at in indices),
    )


def _fit_widths(grid: _Grid, gap: int, *, wrap_heads: bool) -> list[int] | None:
    """Return the width of each column, or None if the table does not fit."""
    widths = []
    for at in range(len(grid.heads)):
        cells = max((display_width(row[at]) for row in grid.rows), default=0)
        if not grid.left[at]:
            cells = min(cells, _MAX_NUMBER)
        head = _max_word_width(grid.heads[at]) if wrap_heads else display_width(grid.heads[at])
        widths.append(max(cells, head, 0 if wrap_heads else grid.min_width[at]))
    free_columns = get_page_width() - len(INDENT) - sum(widths) - gap * (len(widths) - 1)
    if not wrap_heads or free_columns >= 0:
        return widths if free_columns >= 0 else None
    for at in sorted((at for at in range(1, len(widths)) if grid.left[at]), key=lambda at: -widths[at]):
        words = max((_max_word_width(row[at]) for row in grid.rows), default=0)
        min_words = max(_MIN_WORDS, _max_word_width(grid.heads[at]), min(words, _MAX_WORD))
        reduction = min(-free_columns, max(0, widths[at] - min_words))
        widths[at] -= reduction
        free_columns += reduction
        if free_columns >= 0:
            return widths
    widths[0] += free_columns
    return widths if widths[0] >= _MIN_NAME else None


def _max_word_width(text: str) -> int:
    return max(map(display_width, text.split(" ")))


def _draw_rows(
    grid: _Grid, widths: Sequence[int], gap: int, group_labels: Sequence[str], below: Sequence[Sequence[str]]
) -> Iterator[str]:
    if any(grid.heads):
        yield from _draw_row(grid.heads, widths, grid.left, gap, is_head=True)
    place = ""
    for at, row in enumerate(grid.rows):
        if group_labels and group_labels[at] != place:
            place = group_labels[at]
            yield from wrap(place)
        yield from _draw_row(row, widths, grid.left, gap)
        for text in below[at] if below else ():
            yield from wrap(printable(text), first=INDENT * 3)


def _draw_row(
    cells: Sequence[str], widths: Sequence[int], left: Sequence[bool], gap: int, *, is_head: bool = False
) -> Iterator[str]:
    """Yield the lines of a row; long cells wrap, and a long name gets its own lines."""
    name, *rest = cells
    if display_width(name) > widths[0] and not is_head:
        yield from wrap(name)
        name = ""
    columns = [_wrap_cell(cell, width) for cell, width in zip((name, *rest), widths, strict=True)]
    height = max(map(len, columns))
    for place in range(height):
        line = ""
        for at, (lines, width) in enumerate(zip(columns, widths, strict=True)):
            at_line = place - (height - len(lines)) if is_head else place  # headers are bottom-aligned
            text = lines[at_line] if 0 <= at_line < len(lines) else ""
            space = " " * (width - display_width(text))
            line += (" " * gap if at else "") + (text + space if left[at] else space + text)
        yield f"{INDENT}{line}".rstrip()


def _wrap_cell(cell: str, width: int) -> list[str]:
    if display_width(cell) <= width:
        return [cell]
    lines = wrap(cell, first="", width=width)
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], "…"]


def render_text(page: Page, *, coloured: bool = False) -> str:
    """Return the page as text without terminal control sequences or CI runner commands.

    ``coloured`` adds only colour.
    """
    draw = _draw_coloured if coloured else _draw
    # Render the head: verdict and figures, a blank line, then the facts about the run.
    lines: list[str] = []
    has_separator = False
    for block in page.head:
        if isinstance(block, Facts | Table) and not has_separator and lines:
            lines.append("")
            has_separator = isinstance(block, Facts)
        lines += draw(block)
    for section in page.sections:
        if not section.detail:
            lines += _render_section(section, draw, coloured=coloured)
    if page.repeat_verdict and page.verdict is not None:
        lines += ["", *draw(page.verdict)]
    return "\n".join(lines).strip("\n") + "\n"


def _draw(block: Block) -> list[str]:
    return [escape_log_line(printable(line)) for line in _render_block(block)]


def _draw_coloured(block: Block) -> list[str]:
    lines = _draw(block)
    return colour_block(block, lines) if lines else []


def _render_section(section: Section, draw: Callable[[Block], list[str]], *, coloured: bool) -> list[str]:
    """Return the blocks; a table has its own title, other blocks come below the section title."""
    lines: list[str] = []
    is_card = False
    title = [
        escape_log_line(printable(line))
        for line in render_heading(printable(section.title).upper(), printable(section.note))
    ]
    if coloured:
        title[0] = colour_heading(title[0], is_warning=section.anchor == GAPS)
    for block in section.blocks:
        block_lines = draw(block)
        if not block_lines:
            continue
        if isinstance(block, Table):
            lines += ["", *block_lines]
            title = []
            continue
        lines += ["", *title] if title else []
        lines += [""] if is_card and isinstance(block, Card) else []
        is_card = isinstance(block, Card) and bool(block.parts)
        title = []
        lines += block_lines
    return lines


def _render_block(block: Block) -> list[str]:
    """Return the lines of a block; empty for a drawing."""
    if isinstance(block, VerdictBlock):
        return wrap(printable(block.text), first=f"{block.mark} ")
    if isinstance(block, Paragraph):
        return wrap_sentence(printable(block.text))
    if isinstance(block, Note):
        if not block.label:
            return wrap(printable(block.text))
        return wrap(printable(block.text), first=f"{INDENT}{block.label}  ", rest=INDENT * 2)
    if isinstance(block, Code):
        # Render the lines to copy, or their brief form.
        title = f"{INDENT}{block.title}: " if block.title else INDENT
        if not block.brief and len(block.lines) == 1:
            return format_fix_line(printable(block.lines[0]), first=title)
        if block.brief:
            line, *more = block.brief.split("\n")
            lines = format_fix_line(printable(line), first=title)
            return [*lines, *(line for text in more for line in wrap(printable(text), first=INDENT * 2))]
        return [line for text in block.lines for line in format_fix_line(printable(text), first=INDENT)]
    if isinstance(block, ItemList):
        return _render_list(block)
    if isinstance(block, KeyFigures):
        return [] if block.repeated else _render_figures(block)
    if isinstance(block, Facts):
        return _render_facts(block)
    if isinstance(block, Table):
        return render_table(block)
    if isinstance(block, WaitGraph):
        return _render_block(block.text)
    if isinstance(block, Icicle):
        return _render_icicle(block)
    if isinstance(block, HeatMap):
        return _render_heat_map(block) if block.in_text else []
    return _render_card(block) if isinstance(block, Card) else []


def _render_heat_map(block: HeatMap) -> list[str]:
    """Return the title, the cells with their shades, and the notes."""
    lines = ["", *render_heading(printable(block.title).upper(), block.unit)]
    lines += [
        "".join(text for text, _ in line).rstrip() for line in lay_out_heat_map(block, get_page_width())
    ]
    starts = (f"{shade} {cell.text}" for cell in block.scale[::2] if (shade := get_shade(cell.level)).strip())
    lines += wrap(f"shades from: {', '.join(starts)}") if len(block.scale) > 1 else []
    return [*lines, *(line for note in block.notes for line in wrap(printable(note)))]


def _render_list(block: ItemList) -> list[str]:
    """Return the items; labels form a column if all labels are short."""
    width = max(display_width(printable(item.label)) for item in block.items) if block.items else 0
    column = width if width <= _MAX_SHORT_LABEL else 0
    lines = [line for item in block.items for line in _render_item(item, column, brief=block.brief)]
    omission = format_omission(len(block.items), block.total, block.noun)
    return [*lines, *(wrap(omission) if omission else [])]


def _render_item(item: Item, column: int, *, brief: bool) -> list[str]:
    first = f"{INDENT}{item.mark or '-'} "
    text = printable(item.text)
    if column:
        label = printable(item.label)
        first += f"{label}{' ' * (column - display_width(label))}  "
    elif item.label:
        text = printable(f"{item.label}: {item.text}")
    lines = wrap_sentence(text, first=first)
    if brief:
        return lines
    indent = " " * display_width(first)
    for name, detail in item.details:
        lines += wrap(f"{name}: {printable(detail)}", first=indent)
    if item.remedy:
        lines += wrap_sentence(printable(item.remedy), first=f"{indent}→ ")
    return lines


def _render_figures(block: KeyFigures) -> list[str]:
    names = max(display_width(printable(name)) for name, _, _ in block.figures)
    values = max(display_width(value) for _, value, _ in block.figures)
    lines = []
    for name, value, note in block.figures:
        space = " " * (names - display_width(printable(name)))
        padded = " " * (values - display_width(value)) + printable(value)
        lines += wrap(printable(note), first=f"{INDENT}{printable(name)}{space}  {padded}  ")
    return lines


def _render_facts(block: Facts) -> list[str]:
    """Return names and values side by side, with values first for measurements."""
    if block.values_first:
        return _render_measurements(block.rows, INDENT)
    names = [shorten(printable(name), _MAX_FACT_NAME) for name, _ in block.rows]
    width = max(map(display_width, names))
    lines = []
    for name, (_, value) in zip(names, block.rows, strict=True):
        space = " " * (width - display_width(name))
        lines += wrap(printable(value), first=f"{INDENT}{name}{space}  ")
    return lines


def _render_measurements(rows: Sequence[tuple[str, str]], first: str) -> list[str]:
    values = [shorten(printable(value), _MAX_FACT_NAME) for value, _ in rows]
    width = max(map(display_width, values), default=0)
    lines = []
    for value, (_, name) in zip(values, rows, strict=True):
        lines += wrap(printable(name), first=f"{first}{' ' * (width - display_width(value))}{value}  ")
        first = " " * display_width(first)
    return lines


def _render_card(card: Card) -> list[str]:
    title = shorten(printable(card.title), get_page_width() - len(INDENT))
    lines = render_heading(f"{INDENT}{title}", printable(card.note))
    if card.text:
        lines += wrap(printable(card.text), first=_CARD)
    for label, part in card.parts:
        lines += _render_part(label, part)
    return lines


def _render_icicle(icicle: Icicle) -> list[str]:
    """Return the largest boxes as an indented list, each with its share and size."""
    rows = icicle.select_rows(icicle.max_text_rows)
    lines = []
    for box in rows:
        size, share = box.values
        first = f"{INDENT}{share:>7}  {size:>10}  {' ' * box.depth}"
        lines.append(f"{first}{shorten(printable(box.text), get_page_width() - display_width(first))}")
    omission = format_omission(len(rows), len(icicle.boxes), "branches, largest first") if rows else ""
    return [*lines, *(wrap(omission) if omission else [])]


def _render_part(label: str, part: Paragraph | Facts | Code | Explanation) -> Iterator[str]:
    """Yield the lines of a labelled part; code is not wrapped."""
    first = f"{_CARD}{label:<{_LABEL}}"
    if isinstance(part, Facts):
        yield from _render_measurements(part.rows, first)
        return
    texts = part.lines if isinstance(part, Code) else (part.text,)
    for text in map(printable, texts):
        indent = " " * (len(text) - len(text.lstrip(" ")))
        lay_out = format_fix_line if isinstance(part, Code) else wrap_sentence
        yield from lay_out(text.lstrip(" "), first=first + indent)
        first = " " * len(first)


def colour_heading(line: str, *, is_warning: bool = False) -> str:
    """Return the heading of a section in bold; the note on the right stays plain."""
    title, gap, note = line.partition("  ")
    return f"{_style(_BOLD, _YELLOW, text=title) if is_warning else _style(_BOLD, text=title)}{gap}{note}"


def colour_block(block: Block, lines: Sequence[str]) -> list[str]:
    """Return the lines of a block in colour."""
    if isinstance(block, VerdictBlock):
        # Colour the mark and the status: the capitalized words at the start of the text.
        tone = _TONES.get(block.tone, _BOLD)
        status = _STATUS.match(block.text)
        lead = f"{block.mark} {status[0] if status else ''}".rstrip()
        return [_colour_start(lines[0], "", lead, _BOLD, tone), *lines[1:]]
    if isinstance(block, Card):
        return _colour_card(block, lines)
    if isinstance(block, ItemList):
        return list(map(_colour_mark, lines))
    if isinstance(block, Table):
        # Colour the title, the bars, and the marks before zprof's own words; recorded names get no colour.
        head, *rows = lines
        if block.columns[0].kind is Kind.TEXT:
            rows = list(map(_colour_mark, rows))
        if any(column.kind is Kind.BAR for column in block.columns):
            rows = [_BAR.sub(lambda match: _style(_CYAN, text=match[0]), row) for row in rows]
        return [colour_heading(head), *rows]
    label = block.title if isinstance(block, Code) else block.label if isinstance(block, Note) else ""
    return [_colour_start(line, INDENT, label, _BOLD) for line in lines] if label else list(lines)


def _colour_card(card: Card, lines: Sequence[str]) -> list[str]:
    """Colour the title by severity, the confidence next to or below it, and the part labels."""
    severity = _SEVERITIES.get(card.tone, _BOLD)
    head_count = len(render_heading(f"{INDENT}{card.title}", printable(card.note)))
    text_count = len(wrap(printable(card.text), first=INDENT * 2)) if card.text else 0
    head = [_colour_start(lines[0], INDENT, card.title, _BOLD, severity), *lines[1:head_count]]
    head = [
        _CONFIDENCE_NOTE.sub(lambda match: _style(_CONFIDENCES[match[1]], text=match[0]), line)
        for line in head
    ]
    parts = lines[head_count + text_count :]
    for label, _ in card.parts:
        parts = [_colour_start(line, INDENT * 2, f"{label:<9} ", _DIM) for line in parts]
    return [*head, *lines[head_count : head_count + text_count], *parts]


def _colour_mark(line: str) -> str:
    return _MARK.sub(lambda match: f"{INDENT}{_style(_MARKS[match[1]], text=match[1])} ", line)


def _colour_start(line: str, indent: str, text: str, *codes: str) -> str:
    """Colour ``text`` at the start of the line, after its indentation."""
    start = f"{indent}{text}"
    return f"{indent}{_style(*codes, text=text)}{line[len(start) :]}" if line.startswith(start) else line


def _style(*codes: str, text: str) -> str:
    return f"\x1b[{';'.join(dict.fromkeys(codes))}m{text}\x1b[0m"
