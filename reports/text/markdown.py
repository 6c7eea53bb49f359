"""Markdown for a terminal: the part of it that zprof's own pages use, in 80 columns or as many as asked for.

Headings in capitals, paragraphs and list items wrapped anew, code and tables as they stand, indented;
marks of emphasis and code taken out.
"""

import re
from collections.abc import Iterator

from zprof.model.printable import display_width, printable, shorten
from zprof.reports.text.layout import page_width, wrap

_FENCE = "```"
_ITEM = re.compile(r"^(\s*)([-*]|\d+\.)\s+(.*)$")
_HEADING = re.compile(r"^(#{1,6})\s+(.*)$")
_CODE_INDENT = "    "


def as_text(markdown: str, width: int | None = None) -> str:
    """The page as plain text of so many columns."""
    lines = list(_blocks([printable(line) for line in markdown.splitlines()], width or page_width()))
    return "\n".join(_without_double_gaps(lines)).strip("\n") + "\n"


def _blocks(lines: list[str], width: int) -> Iterator[str]:
    """Lines of text for blocks of Markdown; a paragraph ends where something else begins."""
    paragraph: list[str] = []
    code = False
    for line in lines:
        if line.strip().startswith(_FENCE):
            yield from _flushed(paragraph, width)
            code = not code
            yield ""
        elif code or line.startswith("|"):
            yield from _flushed(paragraph, width)
            yield from _as_it_stands(line, width)
        elif not line.strip():
            yield from _flushed(paragraph, width)
            yield ""
        elif heading := _HEADING.match(line):
            yield from _flushed(paragraph, width)
            yield from _heading(len(heading[1]), heading[2], width)
        elif _ITEM.match(line):
            yield from _flushed(paragraph, width)
            paragraph.append(line)
        else:
            paragraph.append(line)
    yield from _flushed(paragraph, width)


def _flushed(paragraph: list[str], width: int) -> list[str]:
    """The paragraph or list item that was gathered, wrapped; it is empty afterwards."""
    if not paragraph:
        return []
    text = " ".join(line.strip() for line in paragraph)
    item = _ITEM.match(paragraph[0])
    paragraph.clear()
    if item is None:
        return wrap(_plain(text), first="  ", width=width)
    mark = "- " if item[2] in "-*" else f"{item[2]} "
    indent = " " * (2 + min(8, len(item[1])))
    return wrap(_plain(text.removeprefix(item[2]).strip()), first=f"{indent}{mark}", width=width)


def _heading(level: int, text: str, width: int) -> list[str]:
    shown = shorten(_plain(text), width)
    return [shown] if level == 1 else ["", shorten(shown.upper(), width)]


def _as_it_stands(line: str, width: int) -> list[str]:
    """Code keeps its line breaks; what is too long goes on in the next line."""
    shown = _CODE_INDENT + line.rstrip()
    if display_width(shown) <= width:
        return [shown]
    indent = " " * (len(shown) - len(shown.lstrip(" ")))
    return wrap(shown.strip(), first=indent, rest=indent + "  ", width=width)


def _plain(text: str) -> str:
    """Without marks: code, strong, emphasis, links (their target stays)."""
    parts = text.split("`")
    words = [_unmarked(part) if index % 2 == 0 else part for index, part in enumerate(parts)]
    return "".join(words)


def _unmarked(text: str) -> str:
    text = re.sub(r"\[([^\]]{1,200})\]\(([^)]{1,200})\)", r"\1 (\2)", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", text)
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*?)\*(?![\w*])", r"\1", text)


def _without_double_gaps(lines: list[str]) -> Iterator[str]:
    last = ""
    for line in lines:
        if line or last:
            yield line
        last = line
