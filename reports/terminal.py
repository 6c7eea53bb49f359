"""Render Markdown for a terminal through rich."""

from collections.abc import Iterator
from io import StringIO
from typing import ClassVar

from zprof.model.formatting import printable
from zprof.reports.layout import get_page_width


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
