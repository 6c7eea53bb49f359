"""Blocks of Markdown: tables, lists, folded parts; their cells and items are Markdown already."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> str:
    """A table: columns of words, by their place, to the left, the others, numbers, to the right."""
    line = ["---" if place in words else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, line, *rows))


def bullets(items: Sequence[str]) -> str:
    """A list, an item a line."""
    return "\n".join(f"- {item}" for item in items)


def folded(summary: str, content: str) -> str:
    """Content that opens on a click; ``summary`` is HTML, so it is zprof's own words, never a name."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def left_out(shown: int, known: int, what: str) -> list[str]:
    """The line that says what a list leaves out, and where all of it is; nothing where it is whole."""
    return [f"{shown} of {known} {what}; `-f json` has all of them."] if shown < known else []
