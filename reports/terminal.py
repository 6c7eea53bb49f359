"""What a terminal adds to text: colour, and Markdown as rich renders it."""

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
_SURE = re.compile(r"\b(high|medium|low) confidence$")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")
_LABEL = re.compile(r"^(    )(evidence|fix|disprove|read|more)(?= )")


def coloured(text: str) -> str:
    """Return a page of text in colour; without it, it says the same."""
    return "\n".join(map(_coloured_line, text.split("\n")))


def _coloured_line(line: str) -> str:
    line = _HEADING.sub(lambda found: _in(_BOLD, found.group()), line)
    line = _MARK.sub(lambda found: f"{found[1]}{_in(_MARKS[found[2]], found[2])} ", line)
    line = _FINDING.sub(lambda found: found[1] + _in(_BOLD, found[2]), line)
    line = _LABEL.sub(lambda found: found[1] + _in(_DIM, found[2]), line)
    line = _SURE.sub(lambda found: _in(_CONFIDENCE[found[1]], found.group()), line)
    return _BAR.sub(lambda found: _in(_CYAN, found.group()), line)


def _in(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def markdown_text(markdown: str, width: int | None = None, *, colour: bool = False) -> str:
    """Return Markdown as rich renders it in so many columns (the page's), in colour or as plain text."""
    from rich.console import Console, ConsoleOptions
    from rich.markdown import Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        """A heading on the left, in capitals below the title: plain text has no bold type."""

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
    inert = "\n".join(printable(line) for line in markdown.splitlines())
    with console.capture() as capture:
        console.print(Page(inert, hyperlinks=False))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n") + "\n"
