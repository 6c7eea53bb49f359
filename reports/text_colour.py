"""Colour the finished lines of a block for a terminal: status, severity, confidence, labels, bars.

What is coloured follows from the block, not from the text that it contains: a name from a recording cannot
become a status.  The codes are added to lines that are escaped already and never change their text.
"""

import re
from collections.abc import Mapping, Sequence

from zprof.model.formatting import printable
from zprof.reports.layout import INDENT, render_heading, wrap
from zprof.reports.page import Block, Card, Code, ItemList, Note, VerdictBlock
from zprof.reports.table import Kind, Table

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
