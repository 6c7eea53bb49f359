"""Render text for a terminal: colours, and Markdown through rich."""

import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import ClassVar

from zprof.model.formatting import printable
from zprof.reports.layout import get_page_width

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_MARKS: Mapping[str, str] = {"✓": _GREEN, "✗": _RED, "!": _YELLOW, "?": _YELLOW}
_CONFIDENCE: Mapping[str, str] = {"high": _GREEN, "medium": _YELLOW, "low": _DIM}
_HEADING = re.compile(r"^[A-Z][A-Z0-9 ,'/?-]{3,}(?=$|  |\(| \()")
_MARK = re.compile(r"^( {0,2})([✓✗!?]) ")
_FINDING = re.compile(r"^(  )((?:\d+|also|perhaps) ZP\w+ \w+)")
_CONFIDENCE_NOTE = re.compile(r"\b(high|medium|low) confidence$")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")
_LABEL = re.compile(r"^(    )(evidence|fix|disprove|read|more)(?= )")


def coloured(text: str) -> str:
    """Add colour to a page of text; the text itself does not change."""
    return "\n".join(map(_colour_line, text.split("\n")))


def _colour_line(line: str) -> str:
    line = _HEADING.sub(lambda match: _style(_BOLD, match.group()), line)
    line = _MARK.sub(lambda match: f"{match[1]}{_style(_MARKS[match[2]], match[2])} ", line)
    line = _FINDING.sub(lambda match: match[1] + _style(_BOLD, match[2]), line)
    line = _LABEL.sub(lambda match: match[1] + _style(_DIM, match[2]), line)
    line = _CONFIDENCE_NOTE.sub(lambda match: _style(_CONFIDENCE[match[1]], match.group()), line)
    return _BAR.sub(lambda match: _style(_CYAN, match.group()), line)


def _style(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def render_markdown_text(markdown: str, width: int | None = None, *, colour: bool = False) -> str:
    """Render Markdown with rich to ``width`` columns (default: the page width), with or without colour."""
    from rich.console import Console, ConsoleOptions
    from rich.markdown import Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        """A left-aligned heading; below the title in capitals, because plain text has no bold type."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            title = self.text.plain if self.tag == "h1" else self.text.plain.upper()
            yield Text(title, style="bold")

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "heading_open": LeftHeading}

    console = Console(
        file=StringIO(),
        width=width or get_page_width(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    printable_text = "\n".join(printable(line) for line in markdown.splitlines())
    with console.capture() as capture:
        console.print(Page(printable_text, hyperlinks=False))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n") + "\n"
