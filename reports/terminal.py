"""Render Markdown for a terminal through rich."""

from collections.abc import Iterator
from io import StringIO
from typing import ClassVar

from zprof.model.formatting import printable
from zprof.reports.layout import INDENT, get_page_width


def render_markdown_text(markdown: str, width: int | None = None, *, colour: bool = False) -> str:
    """Render Markdown with rich, with or without colour, to the page width or to a box of ``width`` columns.

    On a page code is not wrapped: a line that is too long runs over, so that it can be copied.
    """
    from rich.console import Console, ConsoleOptions
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        """A left-aligned heading; below the title in capitals, because plain text has no bold type."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            title = self.text.plain if self.tag == "h1" else self.text.plain.upper()
            yield Text(title, style="bold")

    class Code(CodeBlock):
        """Lines to copy, indented."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            lines = [f"{INDENT}{line}" for line in self.text.plain.rstrip().splitlines()]
            yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            **({"fence": Code, "code_block": Code} if width is None else {}),
        }

    console = Console(
        file=StringIO(),
        width=width or get_page_width(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    printable_text = "\n".join(printable(line) for line in markdown.splitlines())
    with console.capture() as capture:
        console.print(Page(printable_text, hyperlinks=False), crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n") + "\n"
