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

    A result is a model value with these methods and no further fields: it is accepted wherever a ``Report``,
    a ``SideBySide`` or a ``Plan`` is, and all outputs show the same values.
    """

    __slots__ = ()

    def _list_formats(self, *, short: bool) -> "Sequence[Format[Any]]":
        """Return the formats of the full result, or of its short page."""
        raise NotImplementedError

    def _build_short_page(self) -> "Page":
        """Return the page shown in a notebook."""
        raise NotImplementedError

    def _list_lines(self) -> Iterable[str]:
        """Return the lines of ``repr``, which may contain names from a recording."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the answer and the key facts in a few lines."""
        return "\n".join(printable(line) for line in self._list_lines())

    def _repr_html_(self) -> str:
        """Return the short page for a notebook, with its own style, no scripts, and escaped names."""
        from zprof.reports.html import render_html_fragment

        return render_html_fragment(self._build_short_page())

    def to_text(self, *, short: bool = False) -> str:
        """Return the result as plain text, 80 columns wide."""
        return self._render("text", short=short)

    def to_markdown(self, *, short: bool = False) -> str:
        """Return the result as Markdown, with recorded names escaped."""
        return self._render("md", short=short)

    def to_html(self, *, short: bool = False) -> str:
        """Return the result as one self-contained HTML page; a notebook displays a shorter page."""
        return self._render("html", short=short)

    def to_json(self) -> str:
        """Return all values as JSON, with the schema of ``-f json`` on the command line."""
        return self._render("json", short=False)

    def save(self, path: str | Path, *, short: bool = False) -> Path:
        """Write the result to a file in the format of the suffix, such as .html, .md, .json or .txt.

        Raises:
            BadInput: the suffix is unknown, or the file cannot be written.
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
    """Write text to a file, replacing it, and return the path.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        path.write_bytes(text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="choose another file") from None
    return path
