"""Render a page as plain text for a terminal, without its drawings.

What is coloured follows from the block, not from the text that it contains: a name from a recording cannot
become a status.  The codes are added to lines that are escaped already and never change their text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from zprof.model.formatting import display_width, printable, shorten
from zprof.reports.escape import escape_log_line
from zprof.reports.layout import INDENT, format_fix_line, get_page_width, render_heading, wrap, wrap_sentence
from zprof.reports.page import (
    GAPS,
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
    Section,
    VerdictBlock,
)
from zprof.reports.table import Kind, Table
from zprof.reports.text_table import format_omission, render_table

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
#: The mark of a list item or a row; continuation lines are indented further.
_MARK = re.compile(rf"^{INDENT}([{''.join(_MARKS)}]) ")
_STATUS = re.compile(r"[A-Z]{2,}(?: [A-Z]{2,})*")
_CONFIDENCE_NOTE = re.compile(r"\b(high|medium|low) confidence$")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")


def render_text(page: Page, *, coloured: bool = False) -> str:
    """Return the page as text without terminal control sequences or CI runner commands.

    ``coloured`` adds colour and nothing else.
    """
    draw = _draw_coloured if coloured else _draw
    # The head: the verdict and figures, a blank line, then the facts about the run.
    lines: list[str] = []
    has_separator = False
    for block in page.head:
        if isinstance(block, Facts | Table) and not has_separator and lines:
            lines.append("")
            has_separator = isinstance(block, Facts)
        lines += draw(block)
    lines = lines
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
    """Return the blocks; a table has its own title, other blocks follow the section title."""
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
    """Return the lines of a block; none for a drawing."""
    if isinstance(block, VerdictBlock):
        return wrap(printable(block.text), first=f"{block.mark} ")
    if isinstance(block, Paragraph):
        return wrap_sentence(printable(block.text))
    if isinstance(block, Note):
        if not block.label:
            return wrap(printable(block.text))
        return wrap(printable(block.text), first=f"{INDENT}{block.label}  ", rest=INDENT * 2)
    if isinstance(block, Code):
        # The lines to copy, or their brief form.
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
    if isinstance(block, Icicle):
        return _render_icicle(block)
    return _render_card(block) if isinstance(block, Card) else []


def _render_list(block: ItemList) -> list[str]:
    """Return the items; labels form a column if all are short."""
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
    """Return names and values side by side; measurements have the value first."""
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


def _render_part(label: str, part: Paragraph | Facts | Code) -> Iterator[str]:
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
    """Return the heading of a section in bold; its note on the right stays as it is."""
    title, gap, note = line.partition("  ")
    return f"{_style(_BOLD, _YELLOW, text=title) if is_warning else _style(_BOLD, text=title)}{gap}{note}"


def colour_block(block: Block, lines: Sequence[str]) -> list[str]:
    """Return the lines of a block in colour."""
    if isinstance(block, VerdictBlock):
        # Colour the mark and the status, which are the words in capitals that the text begins with.
        tone = _TONES.get(block.tone, _BOLD)
        status = _STATUS.match(block.text)
        lead = f"{block.mark} {status[0] if status else ''}".rstrip()
        return [_colour_start(lines[0], "", lead, _BOLD, tone), *lines[1:]]
    if isinstance(block, Card):
        return _colour_card(block, lines)
    if isinstance(block, ItemList):
        return list(map(_colour_mark, lines))
    if isinstance(block, Table):
        # Colour the title, the bars, and the marks before zprof's own words; names of a recording have none.
        head, *rows = lines
        if block.columns[0].kind is Kind.TEXT:
            rows = list(map(_colour_mark, rows))
        if any(column.kind is Kind.BAR for column in block.columns):
            rows = [_BAR.sub(lambda match: _style(_CYAN, text=match[0]), row) for row in rows]
        return [colour_heading(head), *rows]
    label = block.title if isinstance(block, Code) else block.label if isinstance(block, Note) else ""
    return [_colour_start(line, INDENT, label, _BOLD) for line in lines] if label else list(lines)


def _colour_card(card: Card, lines: Sequence[str]) -> list[str]:
    """Colour the title by severity, the confidence beside or below it, and the labels of the parts."""
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
    """Colour ``text`` where the line begins with it, behind its indentation."""
    start = f"{indent}{text}"
    return f"{indent}{_style(*codes, text=text)}{line[len(start) :]}" if line.startswith(start) else line


def _style(*codes: str, text: str) -> str:
    return f"\x1b[{';'.join(dict.fromkeys(codes))}m{text}\x1b[0m"
