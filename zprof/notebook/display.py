"""Show a result in a notebook, or write it in any format of the command line."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zprof.base.errors import BadInput
from zprof.base.formatting import printable

if TYPE_CHECKING:
    from zprof.reports.formats import Format
    from zprof.reports.page import Page


class Displayed:
    """Display methods of a result.

    A result is the value of the report's model with these methods added, and no field more: whatever takes a
    ``Report``, a ``SideBySide`` or a ``Plan`` takes it, and every output shows the same values.
    """

    __slots__ = ()

    def _list_formats(self, *, short: bool) -> "Sequence[Format[Any]]":
        """Return the formats of the whole result, or of its short page."""
        raise NotImplementedError

    def _build_short_page(self) -> "Page":
        """Return the page that a notebook shows."""
        raise NotImplementedError

    def _list_lines(self) -> Iterable[str]:
        """Return the lines of ``repr``, which may hold names from a recording."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the answer and what matters most, in a few lines."""
        return "\n".join(printable(line) for line in self._list_lines())

    def _repr_html_(self) -> str:
        """Return the short page for a notebook: its own style, no scripts, names escaped."""
        from zprof.reports.html import render_html_fragment

        return render_html_fragment(self._build_short_page())

    def to_text(self, *, short: bool = False) -> str:
        """Return the result as plain text of 80 columns."""
        return self._render("text", short=short)

    def to_markdown(self, *, short: bool = False) -> str:
        """Return the result as Markdown, with names from the recording escaped."""
        return self._render("md", short=short)

    def to_html(self, *, short: bool = False) -> str:
        """Return the result as one self-contained HTML page; a notebook shows a shorter one by itself."""
        return self._render("html", short=short)

    def to_json(self) -> str:
        """Return all values as JSON; the schema is that of ``-f json`` on the command line."""
        return self._render("json", short=False)

    def save(self, path: str | Path, *, short: bool = False) -> Path:
        """Write the result to a file in the format of its suffix, such as .html, .md, .json or .txt.

        Raises:
            BadInput: no format has the suffix, or the file cannot be written.
        """
        path = Path(path)
        formats = self._list_formats(short=short)
        for entry in formats:
            if path.suffix.lower() in entry.suffixes:
                return write_file(path, entry.render(self))
        suffixes = ", ".join(suffix for entry in formats for suffix in entry.suffixes)
        raise BadInput(f"{path}: no format has this suffix", hint=f"use one of {suffixes}")

    def _render(self, name: str, *, short: bool) -> str:
        from zprof.reports.formats import by_name

        return by_name(name, self._list_formats(short=short)).render(self)


def write_file(path: Path, text: str) -> Path:
    """Write a text, replacing the file, and return its path.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        path.write_bytes(text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None
    return path
